"""`foredraft judge calibrate`: held-out problems by the target alone and by the judge at one threshold after another.

The judge's folder keeps which problems were solved, so that a run that was cut resumes. The threshold that is found is
written into judge.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...jsonl import JsonLines
from ...models.judges import change, read_spec
from ...models.judges.artefact import WEIGHTS
from ...models.load.fetch import file_hash
from ...provenance import provenance
from ..problems.families import FAMILIES, draw
from ..problems.problem import Problem
from .calibrate import Budget, Outcome, calibrate
from .eval_arms import EvalArms
from .paired_eval import Arm, PairedEval, Tell, parts

LOG = "calibration.jsonl"
SEED = 7_000_003  # far from the seeds that labels are made with


@dataclass(frozen=True, slots=True)
class CalibrationOrder:
    """How sure, on how many problems."""

    folder: Path
    budget: Budget
    count: int = 1000
    seed: int = SEED
    families: tuple[str, ...] = tuple(FAMILIES)
    thresholds: tuple[float, ...] = ()  # none = the ladder in the judge's file
    max_new_tokens: int = 256
    at_once: int = 8


class SolvedLog:
    """Which problems each arm solves; on disk, so that none is answered twice."""

    def __init__(
        self, path: Path, settings: dict[str, Any], harness: PairedEval, problems: Sequence[Problem], at_once: int
    ) -> None:
        self.harness, self.problems, self.at_once = harness, problems, at_once
        self._log = JsonLines(path, self._by_problem, settings, restart=True)
        self._known = {key: solved for row in self._log.rows for key, solved in row.items()}

    def solved(self, arm: Arm, tell: Tell | None = None) -> Iterator[bool]:
        """Whether an arm solves each problem, in order."""
        first = 0
        for part in parts(self.problems, self.at_once):
            keys = [(arm.name, i) for i in range(first, first + len(part))]
            if not all(key in self._known for key in keys):
                found = [answer.solved for answer in self.harness.answers(arm, part)]
                self._known |= self._log.append({"who": arm.name, "first": first, "solved": found})
            yield from (self._known[key] for key in keys)
            first += len(part)
            if tell is not None:
                tell(first, len(self.problems))

    @staticmethod
    def _by_problem(row: dict[str, Any]) -> dict[tuple[str, int], bool]:
        return {(row["who"], row["first"] + i): solved for i, solved in enumerate(row["solved"])}


def run_calibration(order: CalibrationOrder, arms: EvalArms, tell: Tell | None = None) -> dict[str, Any]:
    """Find the threshold and write it into the judge's file; returns what was written."""
    order.budget.check(order.count)
    thresholds = order.thresholds or read_spec(order.folder).ladder
    settings = asdict(order) | {"folder": "", "judge": file_hash(order.folder / WEIGHTS)}
    settings |= {"target": arms.llm.target.name, "drafter": arms.drafter, "method": arms.method}
    settings |= {"length": arms.length, "dtype": arms.llm.target.dtype, "thresholds": thresholds, "at_once": 0}
    settings.pop("budget")  # the same answers serve another budget
    harness = arms.paired_eval(order.max_new_tokens, order.at_once)
    problems = draw(order.count, order.seed, order.families)
    log = SolvedLog(order.folder / LOG, settings, harness, problems, order.at_once)
    alone = list(log.solved(arms.target(), tell))

    def spoils(threshold: float) -> Iterator[bool]:
        for ours, its in zip(alone, log.solved(arms.judged(threshold), tell), strict=True):
            yield ours and not its

    outcome = calibrate(thresholds, order.count, order.budget, spoils)
    return _write(order, settings, outcome, sum(alone) / len(alone))


def _write(order: CalibrationOrder, settings: dict[str, Any], outcome: Outcome, accuracy: float) -> dict[str, Any]:
    found = {
        **outcome.to_json(),
        "budget": asdict(order.budget),
        "allowed": order.budget.allowed(order.count),
        "target_accuracy": accuracy,
        "settings": settings,
        "provenance": provenance(seed=order.seed),
    }
    change(order.folder, threshold=outcome.threshold, calibration=found)
    return found
