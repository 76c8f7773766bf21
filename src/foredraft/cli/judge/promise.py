"""`foredraft judge calibrate`: which threshold keeps a quality budget on the task at hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from .. import options as o
from ..bench import numbers
from . import shared as s

if TYPE_CHECKING:
    from ...judge.problems.problem import Asked

CHECKED, TARGET = "checked", "target"
PROBLEMS = 1000  # freshly drawn ones, where --count says nothing
SEED = 7_000_003  # far from the seeds that labels are made with


@dataclass(frozen=True, slots=True)
class Problems:
    """What calibration asks, and where it came from."""

    asked: Sequence[Asked]
    source: dict[str, Any]
    agree: bool


def calibrate(
    folder: Annotated[Path, typer.Argument(help="The judge's folder.")],
    task: Annotated[
        str, typer.Option(help="FILE of prompts with a checker; gsm8k, mbpp, humaneval, mmlu; checked: fresh problems.")
    ] = CHECKED,
    check: Annotated[
        str, typer.Option(help="number, text, choice, json, tests, FILE.py:FUNCTION, or target: agree with it.")
    ] = "",
    loss: Annotated[float, typer.Option(help="Share of prompts that the judge may cost.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="How sure that must be.")] = 0.95,
    count: Annotated[int | None, typer.Option(help="Problems (default: all of a task, 1000 fresh ones).")] = None,
    thresholds: Annotated[str, typer.Option(help="From strict to loose, with commas (default: the judge's own).")] = "",
    net: Annotated[
        bool, typer.Option("--net", help="Count spoilt less gained: for 16 bits, where near-ties flip both ways.")
    ] = False,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="Of all answers; 0 is greedy.")] = 0.0,
    target: s.Target = s.DEMO,
    drafter: o.Drafter = None,
    method: s.MethodName = None,
    length: s.Length = 25,
    families: s.Families = "",
    wording: s.Wording = "seen",
    data: Annotated[Path | None, typer.Option(envvar="FOREDRAFT_DATA", help="Data folder of named tasks.")] = None,
    max_new_tokens: o.MaxNewTokens = 256,
    batch_size: s.BatchSize = 8,
    max_length: o.MaxLength = 1024,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seed: Annotated[int, typer.Option(help="Seed of fresh problems; not one that labels were made with.")] = SEED,
    as_json: s.Json = False,
) -> int:
    """Find the loosest threshold that keeps a quality budget; the same command goes on after a break."""
    from ...judge.eval.calibrate import Budget
    from ...judge.eval.calibration_run import CalibrationOrder, run_calibration
    from ...models.judges import read_spec

    read_spec(folder)
    budget = Budget(loss, confidence, net=net or temperature > 0)
    found = problems_of(task, check, count, data, seed, s.wanted(families), s.voices(wording))
    budget.check(len(found.asked))
    steps = numbers(thresholds, float, "--thresholds") if thresholds else ()
    order = CalibrationOrder(
        folder, budget, task, found.source, found.agree, steps, max_new_tokens, batch_size, temperature
    )
    arms = s.arms_of(target, drafter, folder, method, length, dtype, device, batch_size, max_length)
    with s.telling("judging") as tell:
        _show(run_calibration(order, arms, found.asked, tell), folder, as_json)
    return 0


def problems_of(
    task: str, check: str, count: int | None, data: Path | None, seed: int, families: tuple[str, ...], wording: str,
    labels: bool = False,
) -> Problems:  # fmt: skip
    """The problems of a task by name, of a file, or freshly drawn ones; `labels`: to make labels of."""
    from ...judge.problems.checkers import read_task
    from ...judge.problems.families import draw
    from ...judge.problems.phrases import WORDING
    from .mining_tasks import scored_questions

    if count is not None and count < 1:
        raise UsageError("--count must be at least 1")
    agree = check == TARGET
    if task == CHECKED:
        if check:
            raise UsageError("fresh problems bring their own checker; leave --check out, or name a --task")
        source: dict[str, Any] = {"seed": seed, "families": list(families), "wording": wording}
        return Problems(draw(count or PROBLEMS, seed, families, WORDING[wording]), source, False)
    path = Path(task).expanduser()
    if path.suffix or path.exists():
        found: Sequence[Any] = read_task(path, "" if agree else check)[:count]
        source = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "check": check}
    else:
        found, digest = scored_questions(task, data, count, labels)
        source = {"file": task, "sha256": digest, "check": check}
    return Problems(found, source, agree)


def _show(found: dict[str, Any], folder: Path, as_json: bool) -> None:
    from ...judge.eval.calibration_page import more, promise, setting_line

    if not as_json:
        rows = [{k: rung[k] for k in ("threshold", "prompts", "spoilt", "gained", "accepted", "upper")} |
                {"would pass with": more(rung, found["budget"])} for rung in found["rungs"]]  # fmt: skip
        s.show(rows, f"{found['settings']['task']}: {found['allowed']} of {found['prompts']} may be spoilt")
        print(setting_line(found), promise(found), f"See {folder / 'calibration.html'}")
    names = ("threshold", "rungs", "budget", "allowed", "prompts", "target_accuracy", "exact")
    print(json.dumps({name: found[name] for name in names}))
