"""Time that a virtual machine's host took away (`steal` of /proc/stat): nothing that runs inside can make up for it."""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect
from dataclasses import dataclass, field

from foredraft.bench.machine import stolen_seconds

SAMPLE_SECONDS = 0.1


@dataclass
class Stolen:
    """Seconds of all processors that were taken away, over time."""

    times: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        while True:
            self.sample(time.monotonic(), stolen_seconds())
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample(self, at: float, seconds: float) -> None:
        self.times.append(at)
        self.seconds.append(seconds)

    def share(self, begin: float, end: float) -> float:
        """Of all processors' time between the samples about `begin` and `end`."""
        first, last = max(0, bisect(self.times, begin) - 1), min(len(self.times) - 1, bisect(self.times, end))
        if last <= first:
            return 0.0
        taken = self.seconds[last] - self.seconds[first]
        return taken / (self.times[last] - self.times[first]) / (os.cpu_count() or 1)
