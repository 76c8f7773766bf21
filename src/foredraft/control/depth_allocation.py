"""How deep each request of a batch should draft, so that the batch as a whole writes most tokens per second.

    largest  (B + sum of the chances of all drafted levels) / (seconds of the pass + seconds of drafting)

B sequences write a token each anyway. A level of a request is one drafted token ahead; the chance that it is committed
is its gain, and its rows make the pass longer for everybody. A drafter takes its time once per level, for all requests
that it drafts for, so one that is asked for little may not be worth asking at all. Everything here is known before a
token is drawn: what was accepted so far, and what passes cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

POINTS = 48  # numbers of levels that are tried, evenly spread over all that there could be


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request could draft."""

    gains: Sequence[float]  # chance that each level is committed, never rising
    drafter: str
    rows: float = 1.0  # nodes of a level


@dataclass(frozen=True, slots=True)
class Allocation:
    """Levels for each wish, and the tokens per second that they promise."""

    depths: tuple[int, ...]
    rate: float


def best_depths(
    wishes: Sequence[Wish],
    writers: int,
    verify: Callable[[float], float],
    level_seconds: Mapping[str, float],
    even: bool = False,
) -> Allocation:
    """The best depths.

    writers: sequences of the batch, those without wishes included; verify: seconds of their pass with so many drafted
    rows in all; level_seconds: what a drafter takes for a level; even: the pass takes as many rows of every sequence as
    of the one that drafts most. Drafters that do not pay their way are left out one by one.
    """
    drafters, within = {wish.drafter for wish in wishes}, _within_even if even else _within
    best = within(drafters, wishes, writers, verify, level_seconds)
    while drafters:
        trials = [(within(drafters - {d}, wishes, writers, verify, level_seconds), d) for d in sorted(drafters)]
        trial, left_out = max(trials, key=lambda pair: pair[0].rate)
        if trial.rate <= best.rate:
            break
        best, drafters = trial, drafters - {left_out}
    return best


def _within(
    drafters: set[str],
    wishes: Sequence[Wish],
    writers: int,
    verify: Callable[[float], float],
    level_seconds: Mapping[str, float],
) -> Allocation:
    """The best number of levels if they are taken from the most tokens per row downwards."""
    cells = [
        (gain / wish.rows, -level, i)
        for i, wish in enumerate(wishes)
        if wish.drafter in drafters
        for level, gain in enumerate(wish.gains, start=1)
    ]
    cells.sort(reverse=True)  # of equal ones the shallow first, so that no level comes before the one above it
    stride = -(-len(cells) // POINTS) or 1
    depths = [0] * len(wishes)
    deepest = dict.fromkeys(drafters, 0)
    tokens, rows, best = float(writers), 0.0, Allocation(tuple(depths), writers / verify(0.0))
    for n, (density, minus_level, i) in enumerate(cells, start=1):
        wish = wishes[i]
        tokens, rows = tokens + density * wish.rows, rows + wish.rows
        depths[i] = -minus_level
        deepest[wish.drafter] = max(deepest[wish.drafter], depths[i])
        if n % stride == 0 or n == len(cells):
            drafting = sum(levels * level_seconds.get(name, 0.0) for name, levels in deepest.items())
            rate = tokens / (verify(rows) + drafting)
            if rate > best.rate:
                best = Allocation(tuple(depths), rate)
    return best


def _within_even(
    drafters: set[str],
    wishes: Sequence[Wish],
    writers: int,
    verify: Callable[[float], float],
    level_seconds: Mapping[str, float],
) -> Allocation:
    """The best number of rows a sequence. All of them are paid for, so everyone takes as many levels as they hold."""
    asked = [wish.gains if wish.drafter in drafters else () for wish in wishes]
    most, rows = np.array([len(gains) for gains in asked]), np.array([wish.rows for wish in wishes])
    longest = int(most.max(initial=0))
    brought = np.zeros((len(wishes), longest + 1))  # tokens of the first so many levels
    for line, gains in zip(brought, asked, strict=True):
        line[1 : len(gains) + 1] = np.cumsum(gains)
    own = {name: np.array([wish.drafter == name for wish in wishes]) for name in sorted(drafters)}
    best = Allocation((0,) * len(wishes), writers / verify(0.0))
    for height in sorted({size * level for size in set(rows.tolist()) for level in range(1, longest + 1)}):
        depths = np.minimum(most, (height / rows + 1e-9).astype(int))
        drafting = sum(int(depths[mine].max()) * level_seconds.get(name, 0.0) for name, mine in own.items())
        tokens = writers + float(brought[np.arange(len(wishes)), depths].sum())
        rate = tokens / (verify(writers * height) + drafting)
        if rate > best.rate:
            best = Allocation(tuple(depths.tolist()), rate)
    return best
