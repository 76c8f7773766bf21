"""How deep each request of a batch should draft, so that the batch as a whole writes most tokens per second.

A level of a request is one drafted token ahead; its rows make the pass longer for everybody, and a drafter takes its
time once per level for all requests that it drafts for, so one that is asked for little may not be worth asking. All of
it is known before a token is drawn: acceptance so far, and what passes cost. It does not know where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .constants import DEPTH_POINTS
from .cost import DraftTiming
from .objective import rate


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a request could draft."""

    gains: Sequence[float]  # P(accepted) of each level, never rising
    drafter: str
    rows: float = 1.0  # nodes of a level


@dataclass(frozen=True, slots=True)
class Allocation:
    """Levels for each candidate, and their expected tokens per second."""

    depths: tuple[int, ...]
    rate: float


def best_depths(
    candidates: Sequence[Candidate],
    sequences: int,
    verify: Callable[[float], float],
    timings: Mapping[str, DraftTiming],
    even: bool = False,
) -> Allocation:
    """The best depths.

    sequences: of the batch, those without candidates included; verify: seconds of their pass with so many drafted rows
    in all; timings: of drafters whose drafts are not free; even: the pass takes as many rows of every sequence as of
    the one that drafts most. Drafters that do not pay their way are left out one by one.
    """
    search = _Search(candidates, sequences, verify, timings)
    within = search.even if even else search.ragged
    drafters = {candidate.drafter for candidate in candidates}
    best = within(drafters)
    while drafters:
        trial, left_out = max(((within(drafters - {d}), d) for d in sorted(drafters)), key=lambda pair: pair[0].rate)
        if trial.rate <= best.rate:
            break
        best, drafters = trial, drafters - {left_out}
    return best


@dataclass(frozen=True, slots=True)
class _Search:
    candidates: Sequence[Candidate]
    sequences: int
    verify: Callable[[float], float]
    timings: Mapping[str, DraftTiming]
    plain: Allocation = field(init=False)

    def __post_init__(self) -> None:
        nothing = Allocation((0,) * len(self.candidates), rate(0.0, self.verify(0.0), self.sequences))
        object.__setattr__(self, "plain", nothing)

    def _rate(self, accepted: float, rows: float, deepest: Mapping[str, int]) -> float:
        drafting = sum(self.timings[name].seconds(levels) for name, levels in deepest.items() if name in self.timings)
        return rate(accepted, self.verify(rows) + drafting, self.sequences)

    def ragged(self, drafters: set[str]) -> Allocation:
        """The best number of levels if they are taken in order of accepted tokens per row."""
        cells = [
            (gain / candidate.rows, -level, i)
            for i, candidate in enumerate(self.candidates)
            if candidate.drafter in drafters
            for level, gain in enumerate(candidate.gains, start=1)
        ]
        cells.sort(reverse=True)  # of equal ones the shallow first, so that no level comes before the one above it
        stride = -(-len(cells) // DEPTH_POINTS) or 1
        depths, deepest = [0] * len(self.candidates), dict.fromkeys(drafters, 0)
        accepted, rows, best = 0.0, 0.0, self.plain
        for n, (density, minus_level, i) in enumerate(cells, start=1):
            candidate = self.candidates[i]
            accepted, rows = accepted + density * candidate.rows, rows + candidate.rows
            depths[i] = -minus_level
            deepest[candidate.drafter] = max(deepest[candidate.drafter], depths[i])
            if n % stride == 0 or n == len(cells):
                found = self._rate(accepted, rows, deepest)
                if found > best.rate:
                    best = Allocation(tuple(depths), found)
        return best

    def even(self, drafters: set[str]) -> Allocation:
        """The best number of rows per sequence. All of them are paid for, so each takes as many levels as they hold."""
        gains = [candidate.gains if candidate.drafter in drafters else () for candidate in self.candidates]
        most, rows = np.array([len(each) for each in gains]), np.array([each.rows for each in self.candidates])
        longest = int(most.max(initial=0))
        accepted = np.zeros((len(gains), longest + 1))  # of the first so many levels
        for line, each in zip(accepted, gains, strict=True):
            line[1 : len(each) + 1] = np.cumsum(each)
        own = {name: np.array([each.drafter == name for each in self.candidates]) for name in sorted(drafters)}
        best = self.plain
        for height in sorted({size * level for size in set(rows.tolist()) for level in range(1, longest + 1)}):
            depths = np.minimum(most, (height / rows + 1e-9).astype(int))
            deepest = {name: int(depths[mine].max()) for name, mine in own.items()}
            total = float(accepted[np.arange(len(gains)), depths].sum())
            found = self._rate(total, self.sequences * height, deepest)
            if found > best.rate:
                best = Allocation(tuple(depths.tolist()), found)
        return best
