"""`foredraft judge frontier`: the judge and every relaxation that needs no training, at equal accepted length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UsageError, unknown_name
from .. import options as o
from . import shared as s


def frontier(
    out: Annotated[Path, typer.Option(help="Folder for frontier.json; an unfinished run in it goes on.")],
    judges: Annotated[
        str, typer.Option(help="NAME=FOLDER of judges with commas, the first is the one to beat; none = its own.")
    ] = "",
    rules: Annotated[str, typer.Option(help="Relaxations to compare, with commas.")] = "all",
    own: Annotated[
        bool, typer.Option("--own", help="Each judge at its own threshold and the target, nothing else: is it kept?")
    ] = False,
    seed: s.Seed = 17,
    limit: Annotated[int, typer.Option(help="Problems.")] = 350,
    target: s.Target = s.DEMO,
    drafter: o.Drafter = None,
    method: s.MethodName = None,
    length: s.Length = 25,
    families: s.Families = "",
    wording: s.Wording = "unseen",
    max_new_tokens: o.MaxNewTokens = 224,
    batch_size: s.BatchSize = 64,
    max_length: o.MaxLength = 512,
    seconds: Annotated[float, typer.Option(help="Stop beginning new arms after so long.")] = float("inf"),
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    as_json: s.Json = False,
) -> int:
    """Compare relaxed rules at many settings on the same fresh problems, many at a time (no timing)."""
    from ...judge.eval.evaluate import EvalOrder
    from ...judge.eval.frontier import RELAXATIONS, Frontier, at_length, frontier_log, judge_groups, other_groups
    from ...provenance import write_json

    names = () if own else tuple(RELAXATIONS) if rules == "all" else tuple(filter(None, rules.split(",")))
    for name in names:
        if name not in RELAXATIONS:
            raise unknown_name("relaxation", name, RELAXATIONS)
    order = EvalOrder(seed, limit, s.wanted(families), max_new_tokens, batch_size, wording=s.voices(wording))
    arms = s.arms_of(target, drafter, None, method, length, dtype, device, batch_size, max_length)
    folders = _judges(judges, arms.llm.target)
    groups = judge_groups(arms, folders, 0) if own else judge_groups(arms, folders)
    groups[2:2] = other_groups(arms, names)  # what the time may not suffice for comes last
    with s.telling("answering") as tell:
        log = frontier_log(order, arms, folders, out)
        found = Frontier(order, arms, log, seconds, tell, not own).run(groups)
    found["at_equal_length"] = _compared(found["rows"], next(iter(folders)), at_length)
    write_json(out / "frontier.json", found)
    if not as_json:
        s.show(found["rows"], f"{limit} problems, wording {wording}")
        s.show([each for each in found["at_equal_length"] if each], "at the judge's accepted length")
    print(json.dumps({"out": str(out / "frontier.json"), "arms": len(found["rows"]), "left": len(found["left"])}))
    return 0


def _judges(text: str, target: Any) -> dict[str, Path]:
    """Judges by name; the target's own where none is named."""
    from ...recipes.judge_rules import shipped

    found = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, folder = part.partition("=")
        if not equals:
            raise UsageError(f"--judges holds NAME=FOLDER with commas, and {part!r} has no '='")
        found[name] = Path(folder).expanduser()
    return found or {"judge": next(iter(shipped(target)))}


def _compared(rows: list[dict[str, Any]], first: str, at_length: Any) -> list[dict[str, Any]]:
    """For each threshold of the first judge: the best of every other group that accepts as much."""
    target = rows[0]["accuracy"]
    found = []
    for mine in (each for each in rows if each["group"] == first):
        best = at_length(rows, mine["accepted"])
        line: dict[str, Any] = {"judge": mine["arm"], "accepted": mine["accepted"], "lost": target - mine["accuracy"]}
        others = {name: row for name, row in best.items() if name not in (first, "exact")}
        found.append(line | {name: None if row is None else target - row["accuracy"] for name, row in others.items()})
    return found
