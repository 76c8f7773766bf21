"""`foredraft judge pair`: train the pair that judges are shown on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UsageError
from .. import options as o
from ..bench import numbers

EVERY_FAMILY = "all"


def pair(
    out: Annotated[Path, typer.Option(help="Folder for target/ and drafter/; what is there already is kept.")],
    steps: Annotated[int, typer.Option(help="Steps of the target.")] = 4000,
    drafter_steps: Annotated[int, typer.Option(help="Steps of the drafter.")] = 4000,
    seconds: Annotated[float, typer.Option(help="Time for the target; its rate falls to the floor by then.")] = 480.0,
    drafter_seconds: Annotated[float, typer.Option(help="Time for the drafter.")] = 240.0,
    drafter_goal: Annotated[float, typer.Option(help="Solved share that ends the drafter's training.")] = 0.65,
    rows: Annotated[int, typer.Option(help="Texts a step.")] = 128,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    rank: Annotated[int, typer.Option(help="Rank of the target's delta.")] = 8,
    drafter_rank: Annotated[int, typer.Option(help="Rank of the drafter's delta.")] = 32,
    drafter_base: Annotated[str, typer.Option(help="fastdraft (the shipped head), or layers:K.")] = "fastdraft",
    share: Annotated[str, typer.Option(help="Shares of favourite wording, drawn text by text.")] = "0.5,0.98",
    slip: Annotated[float, typer.Option(help="Share of the results first written wrong by the target.")] = 0.2,
    drafter_slip: Annotated[float, typer.Option(help="The same of the drafter's text, never mended.")] = 0.25,
    families: Annotated[str, typer.Option(help="Families of problems, with commas.")] = EVERY_FAMILY,
    parts: Annotated[str, typer.Option(help="target, drafter or both.")] = "target,drafter",
    model: o.Model = o.DEFAULT_MODEL,
    begin: Annotated[Path | None, typer.Option(help="Folder of an earlier pair to go on from.")] = None,
    try_every: Annotated[
        int, typer.Option(help="Steps between trials of the target; the drafter has eight times as many.")
    ] = 1000,
    tries: Annotated[int, typer.Option(help="Fresh problems of a trial.")] = 224,
    final_tries: Annotated[int, typer.Option(help="Fresh problems of the last trial.")] = 700,
    storage: Annotated[str, typer.Option(help="int8 or bf16.")] = "int8",
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Train a target that solves program-checked problems and a drafter that words them differently."""
    from ...judge.fit.batches import DRAFTER, TARGET
    from ...judge.fit.demo_pair import PairOrder, train_pair
    from ...judge.fit.lora_trainer import LoraPlan
    from ...judge.problems.families import FAMILIES

    shares = _two(share, "--share")
    common: dict[str, Any] = {"rows": rows, "lr": lr, "tries": tries, "seed": seed}
    order = PairOrder(
        out=out, rank=rank, drafter_rank=drafter_rank, model=model, drafter_base=drafter_base, dtype=dtype,
        target=LoraPlan(steps, seconds or math.inf, try_every=try_every, **common),
        drafter=LoraPlan(drafter_steps, drafter_seconds or math.inf, goal=drafter_goal,
                       try_every=max(1, try_every // 8), **common),
        target_manner=replace(TARGET, share=shares, slip=slip),
        drafter_manner=replace(DRAFTER, share=shares, slip=drafter_slip),
        families=tuple(FAMILIES) if families == EVERY_FAMILY else tuple(families.split(",")),
        parts=tuple(parts.split(",")), final_tries=final_tries, device=device, storage=storage, begin=begin,
    )  # fmt: skip
    bar = o.StageBar()
    with bar.progress:
        cards = train_pair(order, bar)
    if not as_json:
        _show(cards, out)
    print(json.dumps(cards))
    return 0


def _show(cards: dict[str, Any], out: Path) -> None:
    for part, card in cards.items():
        if card.get("kept"):
            print(f"{part}: {out / part} is there already and was kept; remove it to train it again")
            continue
        by_family = ", ".join(f"{name} {share:.1%}" for name, share in card["solved"].items() if name != "all")
        print(f"{part}: {card['solved']['all']:.1%} of {card['problems']} fresh problems solved ({by_family})")
        print(f"{part}: {out / part}")


def _two(text: str, option: str) -> tuple[float, float]:
    found = numbers(text, float, option)
    if len(found) != 2 or not 0 <= found[0] <= found[1] <= 1:
        raise UsageError(f"{option} holds two shares between 0 and 1, as in 0.5,0.98")
    return found[0], found[1]
