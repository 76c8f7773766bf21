"""Intervals: a paired bootstrap for ratios of totals, Wilson's for shares. Pure numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
Z = 1.959964  # of that level

Array = NDArray[np.float64]


def ratio_of_rates(pairs: Array, seed: int = 0) -> tuple[float, float, float]:
    """(tokens / seconds) of a method over that of plain decoding: the value, and its interval.

    pairs: [questions, 4] method tokens, method seconds, plain tokens, plain seconds. Whole questions are resampled,
    both sides together. A single question has no interval: both ends are the value itself.
    """
    point = float(_rates(pairs.sum(axis=0)))
    drawn = np.random.default_rng(seed).integers(len(pairs), size=(RESAMPLES, len(pairs)))
    low, high = np.quantile(_rates(pairs[drawn].sum(axis=1)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return point, float(low), float(high)


def _rates(totals: Array) -> Array:
    tokens, seconds, plain_tokens, plain_seconds = np.moveaxis(totals, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num((tokens / seconds) / (plain_tokens / plain_seconds), nan=0.0, posinf=0.0)


def ratio_of_mean_rates(pairs: Array) -> float:
    """The same as Spec-Bench counts it: the mean of the questions' tokens per second over that of plain decoding."""
    tokens, seconds, plain_tokens, plain_seconds = pairs.T
    if not (len(pairs) and plain_tokens.any() and seconds.all() and plain_seconds.all()):
        return 0.0
    return float((tokens / seconds).mean() / (plain_tokens / plain_seconds).mean())


def wilson(hits: int, count: int) -> tuple[float, float, float]:
    """A share and its interval."""
    if count == 0:
        return 0.0, 0.0, 1.0
    share, square = hits / count, Z * Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    reach = Z / (1 + square / count) * sqrt(share * (1 - share) / count + square / (4 * count * count))
    return share, middle - reach if hits else 0.0, middle + reach if hits < count else 1.0


def mean_difference(first: Sequence[float], second: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Mean of paired differences and its bootstrap interval."""
    gaps = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    if len(gaps) == 0:
        return 0.0, 0.0, 0.0
    drawn = np.random.default_rng(seed).integers(len(gaps), size=(RESAMPLES, len(gaps)))
    low, high = np.quantile(gaps[drawn].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(gaps.mean()), float(low), float(high)
