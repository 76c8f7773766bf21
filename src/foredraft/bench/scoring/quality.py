"""Marks for answers, and what they say of a method: its accuracy beside the target's own, and how often it flips.

On a small model accuracy hardly moves, whatever a lossy rule does; the share of items whose final answer is not the
target's own (the flip rate) says more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..entries import PLAIN
from ..results.intervals import mean_difference, wilson
from ..results.records import Key


@dataclass(frozen=True, slots=True)
class Score:
    """The mark of one answer."""

    answer: str | None  # the final answer in its one spelling; None = none was found
    correct: bool


def quality(method: str, keys: Sequence[Key], scores: Mapping[Key, Score]) -> dict[str, Any]:
    """Quality fields of a row; empty where nothing was scored."""
    both = [(scores[key], scores[plain]) for key in keys if key in scores and (plain := _plain(key)) in scores]
    if not both:
        return {}
    right, own = [mine.correct for mine, _ in both], [target.correct for _, target in both]
    share, low, high = wilson(sum(right), len(right))
    target, target_low, target_high = wilson(sum(own), len(own))
    gap, gap_low, gap_high = mean_difference(right, own)
    flip, flip_low, flip_high = wilson(sum(mine.answer != target.answer for mine, target in both), len(both))
    return {
        "quality": {
            "scored": len(both),
            **_named("accuracy", share, low, high),
            **_named("target_accuracy", target, target_low, target_high),
            **_named("accuracy_gap", gap, gap_low, gap_high),
            **({} if method == PLAIN else _named("flip_rate", flip, flip_low, flip_high)),
        }
    }


def _plain(key: Key) -> Key:
    return key._replace(method=PLAIN)


def _named(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}
