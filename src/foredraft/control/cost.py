"""What passes of a target cost on one machine, and what follows: how much to draft for most tokens per second.

Acceptance is never the aim. A node is worth drafting if the tokens that it brings outweigh the time that it takes.
"""

from __future__ import annotations

import math
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


class LiveCosts:
    """A cost model that follows what passes really take: a profile is measured once, and machines change their mind.

    Passes of like size share a correction, which begins as that of all passes and leans on its own the more of it
    there is. A hiccup moves it no more than a pass that took twice as long.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.draft = model.draft
        self._all = _Drift()
        self._sizes: dict[int, _Drift] = {}

    def seconds(self, rows: float, context: float = 512, batch: float = 1) -> float:
        own = self._sizes.get(_size(rows * batch), _Drift())
        shift = (own.total + PRIOR_PASSES * self._all.mean) / (own.weight + PRIOR_PASSES)
        return self.model.seconds(rows, context, batch) * math.exp(shift)

    def observe(self, rows: float, context: float, batch: float, seconds: float) -> None:
        """A pass took so long; a clock that stood still says nothing."""
        if seconds <= 0:
            return
        off = math.log(seconds / self.model.seconds(rows, context, batch))
        self._all.add(off)
        self._sizes.setdefault(_size(rows * batch), _Drift()).add(off)


PRIOR_PASSES = 8.0  # passes of one size after which their own correction weighs as much as that of all
FADE = 0.98


@dataclass(slots=True)
class _Drift:
    """Mean logarithm of measured over modelled seconds; old passes fade."""

    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    def add(self, off: float) -> None:
        if self.weight >= PRIOR_PASSES:
            off = min(max(off, self.mean - math.log(2)), self.mean + math.log(2))
        self.total = FADE * self.total + off
        self.weight = FADE * self.weight + 1.0


def _size(rows: float) -> int:
    """Passes between two powers of two cost about alike, relative to the model."""
    return math.ceil(math.log2(max(rows, 1)))


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
