"""Where a step's time goes. Batch mates share a lap equally, so that requests' seconds add up to the engine's."""

from __future__ import annotations

import time

import torch

from .request import Request


class Clock:
    """A stop watch whose laps are added to the statistics of requests."""

    def __init__(self, device: torch.device) -> None:
        self._began = self._last = 0.0
        self._device = device
        self.waits = False  # whether a look at the clock waits for the device: its work has only begun when a call ends

    def start(self) -> None:
        self._began = self._last = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start, without waiting for a device."""
        return time.perf_counter() - self._began

    def now(self) -> float:
        if self.waits and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def lap(self, part: str, requests: list[Request]) -> float:
        """Count the time since the last lap as `part` (prefill, draft, verify or host); returns it."""
        now = self.now()
        elapsed, self._last = now - self._last, now
        name, share = f"{part}_seconds", elapsed / max(1, len(requests))
        for request in requests:
            setattr(request.stats, name, getattr(request.stats, name) + share)
        return elapsed
