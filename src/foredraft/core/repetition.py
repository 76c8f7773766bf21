"""Repetition loops: where an output begins to repeat one block of tokens to its end.

Small models fall into loops under greedy decoding, and a drafter that repeats earlier text is always right
inside one. An output *loops* if its end, up to the last token, repeats a block of at most `LONGEST` tokens at least
`TIMES` times and over at least `SHORTEST` tokens. The first pass through the block is text; what follows is the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

LONGEST = 64
TIMES = 3
SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Loop:
    """A block of `period` tokens that repeats from token `start` to the end."""

    start: int
    period: int

    @property
    def cut(self) -> int:
        """Tokens before the first repeated one: what counts."""
        return self.start + self.period


def find_loop(ids: Sequence[int], stops: Collection[int] = ()) -> Loop | None:
    """The loop that an output ends in; of several readings, the one that cuts earliest. A final stop token is not
    part of it."""
    end = len(ids) - 1 if ids and ids[-1] in stops else len(ids)
    best: Loop | None = None
    for period in range(1, min(LONGEST, end // TIMES) + 1):
        start = end - period
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        loop = Loop(start, period)
        long_enough = end - start >= max(TIMES * period, SHORTEST)
        if long_enough and (best is None or loop.cut < best.cut):
            best = loop
    return best
