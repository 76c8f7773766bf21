"""Admission: how many answers are in the engine, and when somebody has to come back later."""

from __future__ import annotations

import math
from threading import Lock

from .api.api_errors import ApiError, bad_request
from .settings import Limits

_SMOOTH = 0.1  # weight of the newest answer in the running mean of their seconds
LONGEST_WAIT = 60


class Gate:
    """Counts answers that run or wait, and replies that are still being sent. Used from both threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, Lock()
        self._slots, self._held, self._open = 1, 0, 0
        self._seconds = 1.0  # what an answer takes

    def widen(self, slots: int) -> None:
        """The engine is there; so many answers run at a time."""
        self._slots = slots

    @property
    def held(self) -> int:
        return self._held

    def check(self, count: int) -> None:
        """An error if `count` more answers could not come in now: one that says when to try again, or never to."""
        room = self._slots + self._limits.queue
        if count > min(room, self._limits.choices):
            raise bad_request(f"{count} answers at once; this server gives {min(room, self._limits.choices)}", "n")
        if self._held + count > room:
            raise self._full(f"all {self._slots} slots are busy and the queue of {self._limits.queue} is full")
        if self._open >= self._limits.open_replies:
            raise self._full(f"{self._open} replies are being sent already")

    def enter(self, count: int) -> None:
        """A call comes in with `count` answers to write."""
        with self._lock:
            self.check(count)
            self._held += count
            self._open += 1

    def written(self, seconds: float) -> None:
        """An answer is written, or given up, after so many seconds."""
        with self._lock:
            self._held -= 1
            self._seconds += _SMOOTH * (seconds - self._seconds)

    def sent(self) -> None:
        """A call's reply is over. Slow readers hold replies, not slots."""
        with self._lock:
            self._open -= 1

    def _full(self, why: str) -> ApiError:
        wait = math.ceil(self._seconds * max(1, self._held - self._slots) / self._slots)
        wait = min(max(wait, 1), LONGEST_WAIT)
        message = f"{why}; try again in {wait} s"
        return ApiError(429, message, "rate_limit_exceeded", headers={"Retry-After": str(wait)})
