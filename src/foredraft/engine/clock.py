"""Where a step's time goes. Batch mates share a lap equally, so that requests' seconds add up to the engine's."""

from __future__ import annotations

import time

from .request import Request


class Clock:
    """A stop watch that books laps to requests."""

    def __init__(self) -> None:
        self._last = 0.0

    def start(self) -> None:
        self._last = time.perf_counter()

    def lap(self, part: str, requests: list[Request]) -> None:
        """Book the time since the last lap as `part` (prefill, draft, verify or host)."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        name = f"{part}_seconds"
        for request in requests:
            setattr(request.stats, name, getattr(request.stats, name) + elapsed / len(requests))
