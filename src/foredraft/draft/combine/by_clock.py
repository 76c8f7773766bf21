"""A drafter that drafts as long as that is faster than plain decoding, by the clock.

For machines on which a pass takes less time than choosing among drafts would: some rounds draft, a few do not, and the
slower kind becomes ever rarer (`control.throughput_probe`). Batches of different sizes are compared apart; requests
that come while several run go without drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from ...control.constants import SMALL_BATCH
from ...control.throughput_probe import ThroughputProbe
from ...types import Sequence
from ..base import Drafter, WrappedDrafter


class ClockedDrafter(WrappedDrafter):
    """Around a drafter that is always worth the same, so that only the machine and the texts decide."""

    def __init__(self, inner: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(inner)
        self._clock = clock
        self._probes: dict[int, ThroughputProbe] = {}  # by the binary digits of a batch's size
        self._last: tuple[tuple[int, ...], int] = ((), 0)  # the round before: its sequences, and their tokens

    def declines(self, sequence: Sequence, running: int) -> bool:
        """Beside more than a few, even to listen takes a fair part of so quick a pass."""
        return running >= SMALL_BATCH or self.inner.declines(sequence, running)

    def rests(self, sequences: Seq[Sequence]) -> bool:
        probe = self._probes.setdefault(len(sequences).bit_length(), ThroughputProbe())
        who, tokens = tuple(s.id for s in sequences), sum(len(s.tokens) for s in sequences)
        (before, had), self._last = self._last, (who, tokens)
        if before != who:  # others wrote meanwhile, or fewer: that round says nothing
            probe.last = None
        return probe.rests(self._clock(), tokens - had if before == who else 0) or self.inner.rests(sequences)

    def explain(self) -> list[str]:
        measured = [
            f"{self.name}, batches below {1 << digits}: {probe.drafting.rate:.0f} tokens/s with drafts, "
            f"{probe.plain.rate:.0f} without"
            for digits, probe in sorted(self._probes.items())
            if probe.drafting.rate and probe.plain.rate
        ]
        return [*self.inner.explain(), *measured]
