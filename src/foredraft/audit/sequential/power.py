"""How small a bias the test would have seen: known before sampling, since the target's distributions are.

A bias of total variation d is hardest to see where it moves mass between two halves of the tokens (Pinsker). Power is
simulated for exactly that shift, at the first position of every prompt, on the evidence that `martingale.View`
collects; whatever is seen at later positions, or by the pooled views, comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..enumerate.table_model import Array
from .cells import CellDistribution
from .martingale import KAPPAS, VIEWS, log_bayes

POWER = 0.95
_REPEATS = 200
_MOST = 1 << 24  # texts per prompt beyond which nobody waits


def view_threshold(threshold: float) -> float:
    """log evidence of one view that lifts the average of all views to the threshold."""
    return threshold + float(np.log(len(VIEWS)))


def hardest_shift(mass: Array, size: float) -> Array | None:
    """The distribution at total variation `size` from `mass` that is hardest to tell apart; None = no room.

    One half of the tokens has no more to lose than it has: a larger shift is at least as easy to see as that.
    """
    order = np.argsort(-mass)
    gains, total = np.zeros(mass.size, dtype=bool), 0.0
    for cell in order:
        if total + mass[cell] <= 0.5 + 1e-12:
            gains[cell], total = True, total + mass[cell]
    if total <= 0.0:
        return None
    size = min(size, 1.0 - total)
    return np.where(gains, mass * (1 + size / total), mass * (1 - size / (1 - total)))


def power(distributions: Sequence[CellDistribution], count: int, size: float, threshold: float, seed: int = 0) -> float:
    """Chance that `count` texts of every prompt show a shift of total variation `size` at the first token."""
    rng = np.random.default_rng(seed)
    gain = np.zeros((len(KAPPAS), _REPEATS))
    for distribution in distributions:
        wrong = hardest_shift(distribution.mass, size)
        if wrong is not None:
            counts = rng.multinomial(count, wrong / wrong.sum(), size=_REPEATS).astype(np.float64)
            gain += np.stack([log_bayes(counts, distribution.mass, kappa) for kappa in KAPPAS])
    evidence = np.logaddexp.reduce(gain, axis=0) - np.log(len(KAPPAS))
    return float((evidence >= view_threshold(threshold)).mean())


def detectable(distributions: Sequence[CellDistribution], count: int, threshold: float) -> float:
    """Smallest total variation that is seen with 95% power; 1 = none."""
    low, high = 0.0, 1.0
    for size in (0.8, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001):
        if power(distributions, count, size, threshold) >= POWER:
            high = size
        elif high < 1.0:
            low = size
            break
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (low, middle) if power(distributions, count, middle, threshold) >= POWER else (middle, high)
    return high


def texts_needed(distributions: Sequence[CellDistribution], size: float, threshold: float) -> int | None:
    """Texts per prompt that show a shift of that size with 95% power; None = the prompts leave no choice."""
    count = 32
    while power(distributions, count, size, threshold) < POWER:
        count *= 2
        if count > _MOST:
            return None
    low, high = count // 2, count
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if power(distributions, middle, size, threshold) >= POWER else (middle, high)
    return high
