"""`foredraft judge calibrate`: held-out problems by the target alone and by the judge at one threshold after another.

Verdicts lie in the judge's folder, a line for every handful of problems, so that a run that was cut goes on where it
stopped. What is found is written into judge.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...models.judges import change, read_spec
from ...models.judges.artefact import WEIGHTS
from ...models.load.fetch import file_hash
from ...provenance import provenance
from ..labels.lines import Lines
from ..problems.families import FAMILIES, draw
from ..problems.problem import Problem
from .calibrate import Budget, Outcome, calibrate
from .eval_arms import Company
from .paired_eval import Arm, Court, Tell, parts

LEDGER = "calibration.jsonl"
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


class Ledger:
    """Which problems were solved, by whom; on disk."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.lines, self.solved = Lines(path, settings), dict[tuple[str, int], bool]()
        for line in self.lines.found:
            self._take(line)

    def add(self, who: str, first: int, solved: Sequence[bool]) -> None:
        line = {"who": who, "first": first, "solved": list(solved)}
        self.lines.add(line)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        self.solved |= {(line["who"], line["first"] + i): ok for i, ok in enumerate(line["solved"])}


@dataclass(frozen=True, slots=True)
class Hearing:
    """Problems before several arms, with a ledger of what has been heard."""

    court: Court
    ledger: Ledger
    problems: Sequence[Problem]
    at_once: int

    def solved(self, arm: Arm, tell: Tell | None = None) -> Iterator[bool]:
        """Whether an arm solves each problem, in order; heard ones are not heard again."""
        first = 0
        for part in parts(self.problems, self.at_once):
            places = range(first, first + len(part))
            if not all((arm.name, i) in self.ledger.solved for i in places):
                self.ledger.add(arm.name, first, [answer.solved for answer in self.court.answers(arm, part)])
            yield from (self.ledger.solved[arm.name, i] for i in places)
            first += len(part)
            if tell is not None:
                tell(first, len(self.problems))


def run_calibration(order: CalibrationOrder, company: Company, tell: Tell | None = None) -> dict[str, Any]:
    """Find the threshold and write it into the judge's file; returns what was written."""
    order.budget.check(order.count)
    spec = read_spec(order.folder)
    thresholds = order.thresholds or spec.ladder
    settings = asdict(order) | {"folder": "", "judge": file_hash(order.folder / WEIGHTS)}
    settings |= {"target": company.llm.target.name, "drafter": company.drafter, "method": company.method}
    settings |= {"length": company.length, "dtype": company.llm.target.dtype, "thresholds": thresholds, "at_once": 0}
    settings.pop("budget")  # the same verdicts serve another budget
    hearing = Hearing(
        company.court(order.max_new_tokens, order.at_once),
        Ledger(order.folder / LEDGER, json.loads(json.dumps(settings))),
        draw(order.count, order.seed, order.families),
        order.at_once,
    )
    alone = list(hearing.solved(company.target(), tell))

    def spoils(threshold: float) -> Iterator[bool]:
        for ours, its in zip(alone, hearing.solved(company.judging(threshold), tell), strict=True):
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
