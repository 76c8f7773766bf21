"""`foredraft judge calibrate`: held-out problems by the target alone and by the judge at one threshold after another.

The judge's folder keeps which problems were solved, so that a run that was cut resumes. The threshold that is found is
written into judge.json with what speaks for it, and calibration.html shows it on one page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from ...errors import UsageError
from ...jsonl import JsonLines
from ...models.judges import change, read_spec
from ...models.judges.artefact import WEIGHTS
from ...models.load.fetch import file_hash
from ...provenance import provenance
from ..labels.known_questions import unseen
from ..problems.agreement import Open, agreements
from ..problems.problem import Asked
from .calibrate import GAINED, SAME, SPOILT, Budget, Outcome, calibrate
from .calibration_page import calibration_page
from .eval_arms import STANDARD, EvalArms
from .paired_eval import Arm, PairedEval, Tell, parts

LOG, PAGE = "calibration.jsonl", "calibration.html"
EXACT = 200  # problems that the exact rule answers, to compare with


@dataclass(frozen=True, slots=True)
class CalibrationOrder:
    """How sure, on which problems."""

    folder: Path
    budget: Budget
    task: str  # what the problems are called
    source: dict[str, Any]  # where they came from: a seed and families, or a file and its hash
    agree: bool = False  # an answer counts if it ends as the target's own does, whatever is right
    thresholds: tuple[float, ...] = ()  # none = the ladder in the judge's file
    max_new_tokens: int = 256
    at_once: int = 8
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Solved:
    """What an arm did with some problems."""

    right: tuple[bool, ...]
    accepted: int
    steps: int


class SolvedLog:
    """Which problems each arm solves; on disk, so that none is answered twice."""

    def __init__(
        self, path: Path, settings: dict[str, Any], harness: PairedEval, problems: Sequence[Asked], at_once: int
    ) -> None:
        self.harness, self.problems, self.at_once = harness, problems, at_once
        self._log = JsonLines(path, self._parse, settings, restart=True)
        self._known = dict(self._log.rows)

    def solved(self, arm: Arm, tell: Tell | None = None) -> Iterator[bool]:
        """Whether an arm solves each problem, in order."""
        first = 0
        for part in parts(self.problems, self.at_once):
            key = (arm.name, first)
            if key not in self._known or len(self._known[key].right) != len(part):
                found = self.harness.answers(arm, part)
                row = {"who": arm.name, "first": first, "solved": [answer.solved for answer in found]}
                row |= {"accepted": sum(a.accepted for a in found), "steps": sum(a.steps for a in found)}
                self._known |= dict([self._log.append(row)])
            yield from self._known[key].right
            first += len(part)
            if tell is not None:
                tell(first, len(self.problems))

    def accepted(self, name: str) -> float:
        """Draft tokens that stood per target pass, over what an arm has answered so far."""
        mine = [solved for (who, _), solved in self._known.items() if who == name]
        return sum(each.accepted for each in mine) / max(sum(each.steps for each in mine), 1)

    @staticmethod
    def _parse(row: dict[str, Any]) -> tuple[tuple[str, int], Solved]:
        return (row["who"], row["first"]), Solved(tuple(row["solved"]), row.get("accepted", 0), row.get("steps", 0))


def run_calibration(
    order: CalibrationOrder, arms: EvalArms, problems: Sequence[Asked], tell: Tell | None = None
) -> dict[str, Any]:
    """Find the threshold and write it into the judge's file; returns what was written."""
    order.budget.check(len(problems))
    problems, given = _unseen(order, problems), len(problems)
    spec = read_spec(order.folder)
    thresholds = order.thresholds or spec.ladder
    settings = _settings(order, arms, thresholds, len(problems))
    harness = arms.paired_eval(order.max_new_tokens, order.at_once, order.temperature)
    if order.agree:
        problems = agreements(harness, arms.target(), cast(Sequence[Open], problems))
        order.budget.check(len(problems))
    log = SolvedLog(order.folder / LOG, settings, harness, problems, order.at_once)
    alone = [True] * len(problems) if order.agree else list(log.solved(arms.target(), tell))
    order.budget.check_target(sum(alone), len(alone))

    def spoils(threshold: float) -> Iterator[int]:
        for ours, its in zip(alone, log.solved(arms.judged(threshold), tell), strict=True):
            yield SPOILT if ours and not its else GAINED if its and not ours else SAME

    outcome = calibrate(thresholds, len(problems), order.budget, spoils)
    exact = list(islice(log.solved(arms.arm(STANDARD)), EXACT))
    found = _found(order, settings, outcome, alone, spec.calibration)
    found["known"] = given - settings["problems"]
    found["exact"] = {"accuracy": sum(exact) / len(exact), "accepted": log.accepted(STANDARD)}
    for rung in found["rungs"]:
        rung["accepted"] = log.accepted(arms.judged(rung["threshold"]).name)
    change(order.folder, threshold=outcome.threshold, calibration=found)
    (order.folder / PAGE).write_text(calibration_page(order.folder.name, found), encoding="utf-8")
    return found


def _unseen(order: CalibrationOrder, problems: Sequence[Asked]) -> Sequence[Asked]:
    """Without the questions that the judge was trained on: on those it is better than it will be on others."""
    left = unseen(order.folder, problems)
    if len(left) < order.budget.needed:
        raise UsageError(
            f"{len(problems) - len(left)} of {len(problems)} problems are questions that this judge was trained on, "
            f"and {order.budget.needed} others are needed; calibrate on problems that no labels were made of"
        )
    return left


def _settings(order: CalibrationOrder, arms: EvalArms, thresholds: Sequence[float], count: int) -> dict[str, Any]:
    """What must not change between a run and its continuation. The same answers serve another budget."""
    if not thresholds:
        raise UsageError(f"{order.folder} has no ladder of thresholds; train it again, or name them with --thresholds")
    target = arms.llm.target
    return {
        "task": order.task, "source": order.source, "problems": count, "agree": order.agree,
        "max_new_tokens": order.max_new_tokens, "temperature": order.temperature, "thresholds": list(thresholds),
        "thresholds_by": "hand" if order.thresholds else "training", "judge": file_hash(order.folder / WEIGHTS),
        "target": target.name, "dtype": target.dtype, "drafter": arms.drafter, "method": arms.method,
        "length": arms.length,
    }  # fmt: skip


def _found(
    order: CalibrationOrder, settings: dict[str, Any], outcome: Outcome, alone: Sequence[bool],
    before: dict[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """What was seen. Earlier calibrations are named: who asks again and again until it fits promises less."""
    earlier = [] if before is None else [*before.get("earlier", []), {
        "task": before.get("settings", {}).get("task"), "threshold": before.get("threshold"),
        "budget": before.get("budget"), "time": before.get("provenance", {}).get("time"),
    }]  # fmt: skip
    return {
        **outcome.to_json(),
        "budget": asdict(order.budget),
        "prompts": len(alone),
        "allowed": order.budget.allowed(len(alone)),
        "target_accuracy": sum(alone) / len(alone),
        "settings": settings,
        "earlier": earlier,
        "provenance": provenance(),
    }
