"""Calibration: the loosest threshold that provably keeps a quality budget.

Budget: with confidence c, at most a share `loss` of prompts is one that the target solves and the judge spoils (so the
accuracy falls by no more). Thresholds are tested in an order fixed beforehand, from strict to loose, each by Clopper
and Pearson's exact bound on the same held-out prompts; the first that fails ends the search. All tests together err
with probability 1 - c at most: the first threshold in the order that breaks the budget must pass its own test before
any later one is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log
from typing import Any

from ...errors import UsageError
from ..fit.false_accepts import upper_bound

Spoils = Callable[[float], Iterable[bool]]  # threshold -> for each prompt, whether the judge spoils it


@dataclass(frozen=True, slots=True)
class Budget:
    """What a judge may cost."""

    loss: float = 0.01
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not (0 < self.loss < 1 and 0 < self.confidence < 1):
            raise UsageError("a budget's loss and confidence lie between 0 and 1")

    @property
    def needed(self) -> int:
        """Prompts without which not even a spotless judge passes: (1 - loss)^n <= 1 - confidence."""
        return ceil(log(1 - self.confidence) / log(1 - self.loss))

    def allowed(self, count: int) -> int:
        """The most spoilt prompts among `count` that still pass; -1 = none do."""
        spoils = -1
        while spoils < count and upper_bound(spoils + 1, count, self.confidence) <= self.loss:
            spoils += 1
        return spoils

    def check(self, count: int) -> None:
        """Refuse what no outcome could support."""
        if count < self.needed:
            raise UsageError(
                f"{count} prompts cannot support a loss of {self.loss:g} at confidence {self.confidence:g}: even with "
                f"none spoilt {self.needed} are needed; raise --count or --loss"
            )


@dataclass(frozen=True, slots=True)
class Rung:
    """One tested threshold. A test ends early when it can no longer be passed."""

    threshold: float
    prompts: int
    spoilt: int
    upper: float  # bound of the rate; for a test that ended early, as if the rest had gone well
    passed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The threshold to use, and how it was found."""

    threshold: float | None  # None = not even the strictest threshold passed
    rungs: tuple[Rung, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(thresholds: Sequence[float], count: int, budget: Budget, spoils: Spoils) -> Outcome:
    """Test from the strictest threshold on until one fails."""
    budget.check(count)
    if list(thresholds) != sorted(set(thresholds), reverse=True):
        raise UsageError("thresholds must come from strict to loose, each once")
    chosen, rungs, allowed = None, [], budget.allowed(count)
    for threshold in thresholds:
        rung = _test(threshold, count, allowed, budget, spoils(threshold))
        rungs.append(rung)
        if not rung.passed:
            break
        chosen = threshold
    return Outcome(chosen, tuple(rungs))


def _test(threshold: float, count: int, allowed: int, budget: Budget, outcomes: Iterable[bool]) -> Rung:
    seen = spoilt = 0
    for bad in outcomes:
        seen, spoilt = seen + 1, spoilt + bad
        if spoilt > allowed:
            break
    passed = seen == count and spoilt <= allowed
    return Rung(threshold, seen, spoilt, upper_bound(spoilt, count, budget.confidence), passed)
