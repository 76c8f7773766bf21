"""Two samplers, one question: do they write the same texts? A test martingale that needs no distribution at all.

Texts are drawn in pairs, one from each. If both have the same distribution, who wrote which of the two is a fair coin,
whatever that distribution is. Betting on the coin with the frequencies seen so far multiplies a wealth of mean one,
which by Ville's inequality ever reaches 1 / alpha with probability at most alpha. It knows texts only as things that
are equal or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..enumerate.table_model import Array
from .martingale import chance_shift, log_mean
from .power import POWER, hardest_shift

CAUTION = np.array([1.0, 8.0, 64.0])  # counts that both sides are given in advance: bold bets and careful ones
_REPEATS = 100


@dataclass(slots=True)
class PairedBets:
    """The bets at one position."""

    ours: Counter[Hashable] = field(default_factory=Counter)
    theirs: Counter[Hashable] = field(default_factory=Counter)
    wealth: Array = field(default_factory=lambda: np.zeros(CAUTION.size))  # logarithms

    def add(self, first: Hashable, second: Hashable) -> None:
        """One pair: what the sampler under audit wrote, and what the reference did."""
        if first != second:
            ratio = self._ratio(first) / self._ratio(second)
            self.wealth += np.log(2 * ratio / (1 + ratio))
        self.ours[first] += 1
        self.theirs[second] += 1

    def _ratio(self, what: Hashable) -> Array:
        return np.asarray((self.ours[what] + CAUTION) / (self.theirs[what] + CAUTION))

    def log_e(self) -> float:
        return log_mean(self.wealth)

    def shift(self) -> tuple[float, float]:
        """(total variation between the two samples, what chance alone would show)."""
        total = sum(self.ours.values())
        if not total:
            return 0.0, 0.0
        apart = sum(abs(self.ours[w] - self.theirs[w]) for w in self.ours | self.theirs) / (2 * total)
        pooled = np.array([(self.ours[w] + self.theirs[w]) / (2 * total) for w in self.ours | self.theirs])
        return apart, chance_shift(pooled, total / 2)


def pair_power(distributions: Sequence[Array], count: int, size: float, threshold: float, seed: int = 0) -> float:
    """Chance that `count` pairs per distribution show two samplers that are `size` apart, in the hardest direction."""
    rng, wealth = np.random.default_rng(seed), np.zeros((CAUTION.size, _REPEATS))
    for mass in distributions:
        wrong = hardest_shift(mass, size)
        if wrong is None:
            continue
        ours = rng.choice(mass.size, (count, _REPEATS), p=wrong / wrong.sum())
        theirs = rng.choice(mass.size, (count, _REPEATS), p=mass)
        seen = np.zeros((2, mass.size, _REPEATS))
        every = np.arange(_REPEATS)
        for x, y in zip(ours, theirs, strict=True):
            sides = seen[:, [x, y], every][:, :, None] + CAUTION[:, None]
            ratio = sides[0, 0] * sides[1, 1] / (sides[1, 0] * sides[0, 1])
            wealth += np.where(x == y, 0.0, np.log(2 * ratio / (1 + ratio)))
            seen[0, x, every] += 1
            seen[1, y, every] += 1
    return float((np.logaddexp.reduce(wealth, axis=0) - np.log(CAUTION.size) >= threshold).mean())


def detectable_pairs(distributions: Sequence[Array], count: int, threshold: float) -> float:
    """Smallest total variation between two samplers that `count` pairs per prompt show with 95% power; 1 = none."""
    low, high = 0.0, 1.0
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (low, middle) if pair_power(distributions, count, middle, threshold) >= POWER else (middle, high)
    return high
