"""What passes and drafts take on this machine: a profile measured once, corrected by everything timed since.

`CostModel` is the profile as it is measured and stored. `Costs` is the one object that decisions ask: it owns the
corrections and a cache. `DraftTiming` is a drafter's running mean. None of them knows what a draft is worth.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .constants import CONTEXT_STEP, COST_FADE, COST_WEIGHT, HOLD, LEVELS_PER_STEP, OUTLIER, TIMING_RATE, WARM_UP
from .objective import Numbers


@dataclass(frozen=True, slots=True)
class CostModel:
    """Measured seconds of a pass by new rows, tokens of context and sequences; linear between the points."""

    rows: tuple[int, ...]  # new rows of each sequence: the pending token and its drafts
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    verify: tuple[tuple[tuple[float, ...], ...], ...]  # [batch][context][rows]

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
        return cls(rows, contexts, batches, verify)


@dataclass(slots=True)
class DraftTiming:
    """What a drafter's rounds take: seconds = first + (levels - 1) * level, both followed by least mean squares.

    The first level costs more than the others: it reads what the last round wrote, and whatever a round does once falls
    to it. A drafter that drafts one level at a time would think that every level costs as much, and never try two. The
    n-th round counts 1/n, a tenth at least, its seconds at most twice what was expected. Of the first rounds, which may
    compile or capture something, the fastest counts.
    """

    level_seconds: float = 0.0  # of each level after the first
    nodes: float = 0.0  # of one sequence
    levels: float = 0.0
    rounds: int = 0
    first_seconds: float = -1.0  # of the first level; as the others unless given

    def __post_init__(self) -> None:
        if self.first_seconds < 0:
            self.first_seconds = self.level_seconds

    def seconds(self, levels: float) -> float:
        """Of a round with so many levels."""
        return self.first_seconds + (levels - 1) * self.level_seconds if levels >= 1 else 0.0

    @property
    def level_nodes(self) -> float:
        """Nodes of one sequence on one level."""
        return self.nodes / self.levels if self.levels else 1.0

    def follow(self, seconds: float, nodes: float, levels: float, deepest: int = 0) -> None:
        """A round of drafts was like this. `deepest`: levels that were read, where `levels` is a mean of sequences."""
        self.rounds += 1
        pace, expected = max(TIMING_RATE, 1 / self.rounds), self.seconds(deepest or levels)
        more = max((deepest or levels) - 1, 0.0)
        if self.rounds <= WARM_UP:
            self._begin(seconds, expected, more)
        else:
            off = pace * (min(seconds, OUTLIER * expected) - expected) / (1 + more * more)
            self.first_seconds = max(self.first_seconds + off, 0.0)
            self.level_seconds = max(self.level_seconds + off * more, 0.0)
        self.nodes += pace * (nodes - self.nodes)
        self.levels += pace * (levels - self.levels)

    def _begin(self, seconds: float, expected: float, more: float) -> None:
        """A first round counts whole, a later one if it was faster. One level says nothing about others."""
        if self.rounds > 1 and seconds >= expected:
            return
        if more and expected:
            self.first_seconds *= seconds / expected
            self.level_seconds *= seconds / expected
        else:
            self.first_seconds = seconds / (1 + more)
            self.level_seconds = min(self.level_seconds, self.first_seconds) or self.first_seconds


class Costs:
    """A profile that follows what passes really take, cheap enough to ask dozens of times a round.

    Passes of similar size share a correction, which starts as that of all passes and relies on its own the more of it
    there is. Answers are cached until enough passes have been timed.
    """

    def __init__(self, profile: CostModel) -> None:
        self.profile = profile
        self._all, self._sizes = _Drift(), dict[int, _Drift]()
        self._cache: dict[tuple[float, int, float], float] = {}
        self._by_drafts: dict[tuple[int, int], Numbers] = {}
        self._usual: dict[tuple[int, int], tuple[Numbers, list[int]]] = {}  # as profiled, and sizes of these passes
        self._timed = 0

    def seconds(self, rows: float, context: float = 512, batch: float = 1) -> float:
        """Of one pass over `rows` new rows of each of `batch` sequences, as things are now."""
        key = (rows, int(context) // CONTEXT_STEP, batch)
        if key not in self._cache:
            self._cache[key] = self._corrected(rows, context, batch)
        return self._cache[key]

    def by_drafts(self, most: int, batch: int) -> Numbers:
        """Seconds per sequence of a pass over 0 .. most drafts, and the pending token, of each of `batch` sequences."""
        if (most, batch) not in self._by_drafts:
            usual, sizes = self._profiled(most, batch)
            off = {size: math.exp(self._shift(size)) for size in set(sizes)}
            self._by_drafts[most, batch] = usual * np.array([off[size] for size in sizes])
        return self._by_drafts[most, batch]

    def _profiled(self, most: int, batch: int) -> tuple[Numbers, list[int]]:
        if (most, batch) not in self._usual:
            rows = range(1, most + 2)
            usual = np.array([self.profile.seconds(n, batch=batch) / batch for n in rows])
            self._usual[most, batch] = usual, [_size(n * batch) for n in rows]
        return self._usual[most, batch]

    def untimed(self) -> DraftTiming:
        """Of a drafter with a model before any round was timed."""
        return DraftTiming(self.seconds(1) / LEVELS_PER_STEP)

    def observe(self, rows: float, context: float, batch: float, seconds: float) -> None:
        """A pass took so long; 0 = unknown."""
        if seconds > 0:
            off = math.log(seconds / self.profile.seconds(rows, context, batch))
            self._all.add(off)
            self._sizes.setdefault(_size(rows * batch), _Drift()).add(off)
        self._timed += 1
        if self._timed % HOLD == 0:
            self._cache.clear()
            self._by_drafts.clear()

    def _corrected(self, rows: float, context: float, batch: float) -> float:
        return self.profile.seconds(rows, context, batch) * math.exp(self._shift(_size(rows * batch)))

    def _shift(self, size: int) -> float:
        """Of passes of this size, as a logarithm."""
        own = self._sizes.get(size, _Drift())
        return (own.total + COST_WEIGHT * self._all.mean) / (own.weight + COST_WEIGHT)


@dataclass(slots=True)
class _Drift:
    """Mean logarithm of measured over profiled seconds; old passes fade."""

    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    def add(self, off: float) -> None:
        if self.weight >= COST_WEIGHT:
            reach = math.log(OUTLIER)
            off = min(max(off, self.mean - reach), self.mean + reach)
        self.total = COST_FADE * self.total + off
        self.weight = COST_FADE * self.weight + 1.0


def _size(rows: float) -> int:
    """Passes between two powers of two deviate alike."""
    return math.ceil(math.log2(max(rows, 1)))


def _between(points: Sequence[int], x: float) -> list[tuple[int, float]]:
    """Neighbouring points with their weights. The last slope continues beyond the last one; the first is the least."""
    if len(points) == 1 or x <= points[0]:
        return [(0, 1.0)]
    right = min(bisect_right(points, x), len(points) - 1)
    share = (x - points[right - 1]) / (points[right] - points[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]
