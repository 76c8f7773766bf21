"""What passes of a target cost on one machine, and what follows: how much to draft for most tokens per second.

Acceptance is never the aim. A node is worth drafting if the tokens that it brings outweigh the time that it takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CostModel:
    """Measured seconds of a pass by new rows, tokens of context and sequences; linear between the points."""

    rows: tuple[int, ...]  # new rows of each sequence: the pending token and its drafts
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    verify: tuple[tuple[tuple[float, ...], ...], ...]  # [batch][context][rows]
    draft: dict[str, float] = field(default_factory=dict)  # drafter -> seconds of one drafted token

    def seconds(self, rows: float, context: float = 512, batch: float = 1) -> float:
        """Of one pass over `rows` new rows of each of `batch` sequences."""
        total = 0.0
        for b, b_share in _between(self.batches, batch):
            for c, c_share in _between(self.contexts, context):
                for r, r_share in _between(self.rows, rows):
                    total += b_share * c_share * r_share * self.verify[b][c][r]
        return max(total, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> CostModel:
        verify = tuple(tuple(tuple(line) for line in block) for block in raw["verify"])
        rows, contexts, batches = (tuple(raw[name]) for name in ("rows", "contexts", "batches"))
        return cls(rows, contexts, batches, verify, dict(raw["draft"]))


def best_count(gains: Sequence[float], seconds: Callable[[int], float]) -> tuple[int, float]:
    """(how many, tokens per second): the number n of drafts that makes (1 + gains[0] + .. + gains[n - 1]) / seconds(n)
    largest.

    gains[i] is the chance that draft i is committed: survival along a chain, or a tree's values from the best on.
    """
    best, tokens = (0, 1.0 / seconds(0)), 1.0
    for n, gain in enumerate(gains, start=1):
        tokens += gain
        rate = tokens / seconds(n)
        if rate > best[1]:
            best = (n, rate)
    return best


def _between(points: Sequence[int], x: float) -> list[tuple[int, float]]:
    """Neighbouring points with their weights. Beyond the last one the last slope goes on; before the first it ends."""
    if len(points) == 1 or x <= points[0]:
        return [(0, 1.0)]
    right = min(bisect_right(points, x), len(points) - 1)
    share = (x - points[right - 1]) / (points[right] - points[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]
