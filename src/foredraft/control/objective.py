"""The one objective of everything that decides how much to draft: expected tokens per second of a round.

    rate = (sequences + expected accepted drafts) / seconds

Every sequence writes one token of the target's own; a draft adds the probability that it is accepted, its gain.
Acceptance is never the aim. This module does not know where gains and seconds come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]


def rate(accepted: float, seconds: float, sequences: float = 1.0) -> float:
    """Expected tokens per second."""
    return (sequences + accepted) / seconds


def rates(gains: Numbers, seconds: Numbers) -> Numbers:
    """[B, n + 1] rates of the first 0 .. n drafts of each of B sequences, from gains [B, n] and seconds [n + 1]."""
    accepted = np.zeros((len(gains), gains.shape[1] + 1), dtype=gains.dtype)
    gains.cumsum(axis=1, out=accepted[:, 1:])
    found: Numbers = (1 + accepted) / seconds
    return found


def best_count(
    gains: Sequence[float], seconds: Callable[[int], float], sequences: float = 1.0, least: int = 0
) -> tuple[int, float]:
    """(n, rate): the number n >= least of drafts with the highest rate.

    gains[i] is the probability that draft i is accepted: survival along a chain, or a tree's values in falling order.
    """
    tokens = sequences + sum(gains[:least])
    best = least, tokens / seconds(least)
    for n, gain in enumerate(gains[least:], start=least + 1):
        tokens += gain
        if (found := tokens / seconds(n)) > best[1]:
            best = n, found
    return best


def best_counts(gains: Sequence[Sequence[float]], seconds: Callable[[int], float]) -> tuple[list[int], float]:
    """How many drafts of each sequence to verify in one pass, and the accepted drafts expected of them all.

    gains[b] falls along the chain of sequence b; seconds(n) is a pass over n drafts of all sequences together.
    """
    order = sorted(((gain, b) for b, chain in enumerate(gains) for gain in chain), reverse=True)
    total, _ = best_count([gain for gain, _ in order], seconds, len(gains))
    counts = [0] * len(gains)
    for _, b in order[:total]:
        counts[b] += 1  # gains fall along a chain, so these are its first drafts
    return counts, sum(gain for gain, _ in order[:total])
