"""Tables over the test questions of real tasks: many arms, slice by slice, until the time is over.

The questions of all tasks are dealt into slices in an order that is fixed beforehand, and every arm answers a slice
before any of them sees the next one. So a run that is cut off is one over fewer questions, and nothing else. An arm is
compared with the target on the very questions that both have answered.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ...bench.results.intervals import mean_difference, wilson
from ...jsonl import JsonLines
from ...types import Reason
from ..problems.problem import Asked
from .paired_eval import Answer, Arm, PairedEval

TARGET, EXACT = "target", "exact"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one question, without its text."""

    task: str
    solved: bool
    tokens: int
    steps: int
    drafted: int
    accepted: int
    relaxed: int  # accepted although the exact test had refused them
    ended: bool  # by itself, within the limit

    @classmethod
    def of(cls, problem: Asked, answer: Answer, limit: int) -> Outcome:
        relaxed = sum(reason in (Reason.JUDGE, Reason.RELAXED) for reason in answer.reasons)
        size = len(answer.output)
        return cls(
            problem.family, answer.solved, size, answer.steps, answer.drafted, answer.accepted, relaxed, size < limit
        )


Key = tuple[str, int]  # arm, slice
Timed = tuple[list[Outcome], float]


class OutcomeLog:
    """Outcomes by arm and slice, on disk as soon as they are known."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._log = JsonLines(path, self._parse, settings)
        self.found: dict[Key, Timed] = dict(self._log.rows)

    @staticmethod
    def _parse(row: dict[str, Any]) -> tuple[Key, Timed]:
        return (row["arm"], row["slice"]), ([Outcome(*each) for each in row["outcomes"]], row["seconds"])

    def answer(self, harness: PairedEval, arm: Arm, number: int, problems: Sequence[Asked]) -> list[Outcome]:
        """All problems of a slice at once, so that the engine is never short of work before its end."""
        key = (arm.name, number)
        if key not in self.found:
            begun = time.perf_counter()
            answers = harness.answers(arm, problems)
            limit = harness.params.max_new_tokens
            made = [Outcome.of(problem, answer, limit) for problem, answer in zip(problems, answers, strict=True)]
            row = {"arm": arm.name, "slice": number, "seconds": time.perf_counter() - begun}
            self.found |= dict([self._log.append(row | {"outcomes": [astuple(each) for each in made]})])
        return self.found[key][0]

    def outcomes(self, arm: str, slices: Sequence[int]) -> list[Outcome]:
        return [each for number in slices for each in self.found[arm, number][0]]

    def slices(self, arm: str) -> list[int]:
        return sorted(number for name, number in self.found if name == arm)


def deal(tasks: dict[str, Sequence[Asked]], count: int, seed: int = 0) -> list[list[Asked]]:
    """Slices that hold the same share of every task, each task in an order of its own."""
    slices: list[list[Asked]] = [[] for _ in range(count)]
    for name, problems in tasks.items():
        order = list(problems)
        random.Random(f"{seed}/{name}").shuffle(order)
        for number in range(count):
            slices[number] += order[number * len(order) // count : (number + 1) * len(order) // count]
    return slices


def rows(log: OutcomeLog, arms: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row for each arm and task, and for each arm over all tasks; intervals of 95%."""
    for arm in arms:
        shared = [number for number in log.slices(arm) if (TARGET, number) in log.found]
        if not shared:
            continue
        mine, own = log.outcomes(arm, shared), log.outcomes(TARGET, shared)
        exact = log.outcomes(EXACT, shared) if set(shared) <= set(log.slices(EXACT)) else []
        seconds = sum(log.found[arm, number][1] for number in shared)
        for task in ("all", *dict.fromkeys(each.task for each in mine)):
            pairs = [(a, b) for a, b in zip(mine, own, strict=True) if task in ("all", a.task)]
            row = {"arm": arm, "task": task, **figures(pairs)}
            row["exact_accepted"] = accepted([each for each in exact if task in ("all", each.task)])
            yield row | ({"tokens_per_second": sum(a.tokens for a, _ in pairs) / seconds} if task == "all" else {})


def accepted(outcomes: Sequence[Outcome]) -> float | None:
    """Drafted tokens that stood, per pass of the target; None where nothing was drafted."""
    drafted, steps = sum(each.drafted for each in outcomes), sum(each.steps for each in outcomes)
    return sum(each.accepted for each in outcomes) / max(1, steps) if drafted else None


def figures(pairs: Sequence[tuple[Outcome, Outcome]]) -> dict[str, Any]:
    """What an arm did, beside the target: accuracy, the paired difference, and what was accepted a pass."""
    mine, own = [a for a, _ in pairs], [b for _, b in pairs]
    share, low, high = wilson(sum(a.solved for a in mine), len(mine))
    gap, gap_low, gap_high = mean_difference([a.solved for a in mine], [b.solved for b in own])
    return {
        "problems": len(mine), "accuracy": share, "low": low, "high": high, "gap": gap, "gap_low": gap_low,
        "gap_high": gap_high, "spoilt": sum(b.solved and not a.solved for a, b in pairs),
        "gained": sum(a.solved and not b.solved for a, b in pairs),
        "accepted": accepted(mine),
        "relaxed": 1000 * sum(a.relaxed for a in mine) / max(1, sum(a.tokens for a in mine)),
        "tokens": sum(a.tokens for a in mine) / max(1, len(mine)), "ended": sum(a.ended for a in mine) / len(mine),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a family of rules on the calibration questions."""

    family: str
    arm: str
    accuracy: float
    accepted: float


def choose(settings: Sequence[Setting], target: float, points: float) -> dict[str, Setting]:
    """Of each family the setting that accepts most while it loses at most so many points; else its most accurate."""
    found: dict[str, Setting] = {}
    for family in dict.fromkeys(each.family for each in settings):
        mine = [each for each in settings if each.family == family]
        good = [each for each in mine if each.accuracy >= target - points]
        found[family] = max(good, key=lambda s: s.accepted) if good else max(mine, key=lambda s: s.accuracy)
    return found
