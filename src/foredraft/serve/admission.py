"""Admission: how many answers are in the engine, whose they are, and when somebody has to come back later."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from threading import Lock

from .api.api_errors import ApiError, bad_request
from .settings import Limits

WINDOW = 32  # departures from which the pace of the engine is taken
LONGEST_WAIT = 60


class Admission:
    """Counts answers that run or wait, and replies that are still being sent. Used from both threads.

    All clients share the queue, and none can fill it for the others: a client that holds less than its share
    (weight / sum of weights) of slots and queue is let in even if the queue is full. So at most twice the queue waits.
    """

    def __init__(self, limits: Limits, weights: Mapping[str, float]) -> None:
        self._limits, self._weights, self._lock = limits, dict(weights), Lock()
        self._slots, self._open = 1, 0
        self._held: Counter[str] = Counter()  # answers by client
        self._departures: deque[float] = deque(maxlen=WINDOW + 1)  # since the engine was last idle

    def widen(self, slots: int) -> None:
        """The engine is there; so many answers run at a time."""
        self._slots = slots

    @property
    def held(self) -> int:
        return sum(list(self._held.values()))  # a copy: the other thread may let in a client's first answer meanwhile

    def check(self, count: int, client: str) -> None:
        """An error if `count` more answers could not come in now: one that says when to try again, or never to."""
        room = self._slots + self._limits.queue
        if count > min(room, self._limits.choices):
            raise bad_request(f"{count} answers at once; this server gives {min(room, self._limits.choices)}", "n")
        share = room * self._weights[client] / sum(self._weights.values())
        missing = self.held + count - room
        if missing > 0 and self._held[client] + count > share:
            why = f"all {self._slots} slots are busy and the queue of {self._limits.queue} is full"
            raise too_busy(why, missing * self._pace())
        if self._open >= self._limits.open_replies:
            raise too_busy(f"{self._open} replies are being sent already")

    def enter(self, count: int, client: str) -> None:
        """A call comes in with `count` answers to write."""
        with self._lock:
            self.check(count, client)
            self._held[client] += count
            self._open += 1

    def written(self, client: str) -> None:
        """An answer is written, or given up."""
        with self._lock:
            self._held[client] -= 1
            self._departures.append(time.monotonic())
            if not self.held:
                self._departures.clear()

    def sent(self) -> None:
        """A call's reply is over. Slow readers hold replies, not slots."""
        with self._lock:
            self._open -= 1

    def _pace(self) -> float:
        """Seconds from one departure to the next."""
        times = self._departures
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 1.0


class BodyBudget:
    """How many bodies are read at a time, and how many bytes they hold; used on the event loop alone.

    Where there are several clients, one of them gets half of either at most.
    """

    def __init__(self, limits: Limits, clients: int) -> None:
        self._part = 2 if clients > 1 else 1
        self._most = (limits.open_bodies, limits.open_body_bytes)
        self._used: Counter[tuple[int, str | None]] = Counter()  # (which limit, client or None for all) -> used

    def take(self, which: int, count: int, client: str) -> None:
        """Reserve, or refuse."""
        most = self._most[which]
        if self._used[which, None] + count > most or self._used[which, client] + count > most // self._part:
            raise too_busy("too many request bodies are being received", headers={"Connection": "close"})
        self._used[which, None] += count
        self._used[which, client] += count

    def give_back(self, which: int, count: int, client: str) -> None:
        self._used[which, None] -= count
        self._used[which, client] -= count


BODIES, BYTES = 0, 1  # what `BodyBudget` counts


def too_busy(why: str, seconds: float = 1.0, headers: Mapping[str, str] | None = None) -> ApiError:
    """429, and when there should be room."""
    wait = min(max(math.ceil(seconds), 1), LONGEST_WAIT)
    return ApiError(
        429,
        f"{why}; try again in {wait} s",
        "rate_limit_exceeded",
        headers={"Retry-After": str(wait), **(headers or {})},
    )
