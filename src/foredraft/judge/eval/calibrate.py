"""Calibration: the loosest threshold that provably keeps a quality budget.

Budget: with confidence c, the judge costs at most a share `loss` of prompts. For greedy answers that is the share that
the target solves and the judge spoils. Sampled answers differ by chance alone, so there it is the share spoilt less the
share gained. Thresholds are tested in an order fixed beforehand, from strict to loose, each by Clopper and Pearson's
exact bounds on the same held-out prompts; the first that fails ends the search. All tests together err with probability
1 - c at most: the first threshold in the order that breaks the budget must pass its own test before any later one is
looked at. A target that solves next to nothing has nothing to lose, and nothing is promised for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log
from typing import Any

from ...errors import UsageError
from ..fit.false_accepts import lower_bound, upper_bound

SPOILT, SAME, GAINED = 1, 0, -1
Spoils = Callable[[float], Iterable[int]]  # threshold -> for each prompt whether the judge spoils or gains it
WORTH = 10  # times the loss: so much the target must solve, or a judge could spoil a tenth of it unseen
MOST_PROMPTS = 10_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """What a judge may cost."""

    loss: float = 0.01
    confidence: float = 0.95
    net: bool = False  # spoilt less gained, for sampled answers

    def __post_init__(self) -> None:
        if not (0 < self.loss < 1 and 0 < self.confidence < 1):
            raise UsageError("a budget's loss and confidence lie between 0 and 1")

    @property
    def each(self) -> float:
        """Confidence of one bound: where two of them are joined, each may err half as often."""
        return (1 + self.confidence) / 2 if self.net else self.confidence

    @property
    def needed(self) -> int:
        """Prompts without which not even a spotless judge passes: (1 - loss)^n <= 1 - confidence."""
        return ceil(log(1 - self.each) / log(1 - self.loss))

    def upper(self, spoilt: int, gained: int, count: int) -> float:
        """The most that the judge costs, by what was seen of it."""
        return upper_bound(spoilt, count, self.each) - (lower_bound(gained, count, self.each) if self.net else 0.0)

    def allowed(self, count: int) -> int:
        """The most spoilt prompts among `count` that still pass, if none is gained; -1 = none do."""
        spoils = -1
        while spoils < count and self.upper(spoils + 1, 0, count) <= self.loss:
            spoils += 1
        return spoils

    def check(self, count: int) -> None:
        """Refuse what no outcome could support."""
        if count < self.needed:
            raise UsageError(
                f"{count} prompts cannot support a loss of {self.loss:g} at confidence {self.confidence:g}: even with "
                f"none spoilt {self.needed} are needed; raise --count or --loss"
            )

    def check_target(self, solved: int, count: int) -> None:
        """Refuse a target that solves too little to lose: a judge could spoil a large part of it within the budget."""
        sure = lower_bound(solved, count, self.confidence)
        if sure < WORTH * self.loss:
            raise UsageError(
                f"the target solves {solved} of {count} problems (at least {sure:.1%}): too little to lose, so a "
                f"loss of {self.loss:g} would promise nothing; take problems that it can solve, or --check target"
            )

    def enough(self, spoilt: float, gained: float) -> int | None:
        """Prompts at which rates like these would pass; None = no number of them suffices."""
        net = spoilt - gained if self.net else spoilt
        if net >= self.loss:
            return None
        low, high = 0, self.needed
        while high < MOST_PROMPTS and not self._passes(spoilt, gained, high):
            low, high = high, 2 * high
        if high >= MOST_PROMPTS:
            return None
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            low, high = (low, middle) if self._passes(spoilt, gained, middle) else (middle, high)
        return high

    def _passes(self, spoilt: float, gained: float, count: int) -> bool:
        return self.upper(ceil(spoilt * count), int(gained * count), count) <= self.loss


@dataclass(frozen=True, slots=True)
class Rung:
    """One tested threshold. A test ends early when it can no longer be passed."""

    threshold: float
    prompts: int
    spoilt: int
    gained: int
    upper: float  # bound of the cost; for a test that ended early, as if the rest had gone well
    passed: bool
    enough: int | None  # prompts at which its rates would pass; None = none would do


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
    chosen, rungs = None, []
    for threshold in thresholds:
        rung = _test(threshold, count, budget, spoils(threshold))
        rungs.append(rung)
        if not rung.passed:
            break
        chosen = threshold
    return Outcome(chosen, tuple(rungs))


def _test(threshold: float, count: int, budget: Budget, outcomes: Iterable[int]) -> Rung:
    seen = spoilt = gained = 0
    allowed = count if budget.net else budget.allowed(count)
    for outcome in outcomes:
        seen, spoilt, gained = seen + 1, spoilt + (outcome == SPOILT), gained + (outcome == GAINED)
        if spoilt > allowed:
            break
    upper = budget.upper(spoilt, gained, count)
    enough = budget.enough(spoilt / max(seen, 1), gained / max(seen, 1))
    return Rung(threshold, seen, spoilt, gained, upper, seen == count and upper <= budget.loss, enough)
