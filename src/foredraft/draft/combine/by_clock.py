"""A drafter that drafts as long as that is faster than plain decoding, by the clock.

For machines on which a pass takes less time than choosing among drafts would: some rounds draft, a few do not, and the
slower kind becomes ever rarer (`control.throughput_probe`). Batches of different sizes are compared apart, and so are
sampled texts. A request that would end before drafting is tried again goes without, and so does one beside several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from ...control.constants import CLOCKED_REST, SMALL_BATCH
from ...control.throughput_probe import ThroughputProbe
from ...types import Sequence
from ..base import Drafter, WrappedDrafter


class Load(NamedTuple):
    """Rounds that are compared with one another."""

    digits: int  # binary ones, of the number of texts
    sampled: bool


class ClockedDrafter(WrappedDrafter):
    """Around a drafter that is always worth the same, so that only the machine and the texts decide."""

    def __init__(self, inner: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(inner)
        self._clock = clock
        self._probes: dict[Load, ThroughputProbe] = {}
        self._last: tuple[tuple[int, ...], int] = ((), 0)  # the round before: its sequences, and their tokens

    def declines(self, sequence: Sequence, running: int) -> bool:
        """Even to listen takes a tenth of so quick a pass."""
        if running >= SMALL_BATCH or self.inner.declines(sequence, running):
            return True
        probe = self._probes.get(Load(running.bit_length(), sequence.params.temperature > 0))
        return probe is not None and probe.spares(sequence.room)

    def rests(self, sequences: Seq[Sequence]) -> bool:
        load = Load(len(sequences).bit_length(), any(s.params.temperature > 0 for s in sequences))
        probe = self._probes.setdefault(load, ThroughputProbe(CLOCKED_REST))
        who, tokens = tuple(s.id for s in sequences), sum(len(s.tokens) for s in sequences)
        (before, had), self._last = self._last, (who, tokens)
        if before != who:  # others wrote meanwhile, or fewer: that round says nothing
            probe.last = None
        return probe.rests(self._clock(), tokens - had if before == who else 0) or self.inner.rests(sequences)

    def explain(self) -> list[str]:
        measured = [
            f"{self.name}, {'sampled' if load.sampled else 'greedy'}, batches below {1 << load.digits}: "
            f"{probe.drafting.rate:.0f} tokens/s with drafts, {probe.plain.rate:.0f} without"
            for load, probe in sorted(self._probes.items())
            if probe.drafting.rate and probe.plain.rate
        ]
        return [*self.inner.explain(), *measured]
