"""Shares and their bounds: how many wrong tokens pass at a threshold, and what that proves. Pure numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Shares of wrong tokens among which thresholds are laid, from strict to loose.
RUNGS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
KEPT = (0.85, 0.92, 0.96, 0.98, 0.99)  # shares of right tokens: a sharp head has few wrong ones
# The next threshold keeps so much more of the right tokens, or rejects so small a share as many: each is a run.
APART, FEWER = 0.1, 0.4
SAFE = 0.05  # false accepts of wrong tokens that an uncalibrated judge may show at most (upper bound)


def upper_bound(hits: int, count: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided bound: the rate at which so few hits would have chance 1 - confidence."""
    if hits >= count:
        return 1.0
    from scipy.special import betaincinv  # heavy to import, and only needed here

    return float(betaincinv(hits + 1, count - hits, confidence))


def lower_bound(hits: int, count: int, confidence: float = 0.95) -> float:
    """The bound from below: the rate at which so many hits would have chance 1 - confidence."""
    return 1.0 - upper_bound(count - hits, count, confidence) if hits else 0.0


def auc(scores: Sequence[float] | Array, right: Sequence[bool] | NDArray[np.bool_]) -> float:
    """The chance that a right token scores above a wrong one, ties counted half."""
    values, good = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    up, down = int(good.sum()), int((~good).sum())
    if not up or not down:
        return float("nan")
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # equal values share the mean of their ranks
    return float((ranks[good].sum() - up * (up + 1) / 2) / (up * down))


def ladder(scores: Array, right: NDArray[np.bool_]) -> tuple[float, ...]:
    """Thresholds from strict to loose, at which so large a share of wrong tokens, or of right ones, would pass."""
    wrong = np.sort(scores[~right])
    if not len(wrong):
        return (0.99, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3)
    found = [float(wrong[min(len(wrong) - 1, int(np.ceil((1 - rung) * len(wrong))) - 1)]) for rung in RUNGS]
    found += [float(threshold) for threshold in np.quantile(scores[right], [1 - share for share in KEPT])]
    chosen: list[float] = []
    before = 0.0
    for threshold in sorted(set(found), reverse=True):
        kept = float((scores[right] > threshold).mean()) if right.any() else 0.0
        if not chosen or kept >= before + APART or 1 - kept <= FEWER * (1 - before):
            chosen, before = [*chosen, threshold], kept
    return tuple(chosen)


def curve(scores: Array, right: NDArray[np.bool_], thresholds: Sequence[float]) -> list[dict[str, float]]:
    """At each threshold: the share of wrong tokens that pass, its bound, and the share of right ones that do."""
    rows = []
    wrong, good = scores[~right], scores[right]
    for threshold in thresholds:
        passed = int((wrong > threshold).sum())
        rows.append(
            {
                "threshold": threshold,
                "false_accept": passed / len(wrong) if len(wrong) else 0.0,
                "false_accept_upper": upper_bound(passed, len(wrong)) if len(wrong) else 1.0,
                "kept": float((good > threshold).mean()) if len(good) else 0.0,
            }
        )
    return rows


def careful(rows: Sequence[dict[str, float]], most: float = SAFE) -> float | None:
    """The loosest threshold whose bound of false accepts stays below `most`; None = no threshold does."""
    chosen = None
    for row in rows:
        if row["false_accept_upper"] > most:
            break
        chosen = row["threshold"]
    return chosen
