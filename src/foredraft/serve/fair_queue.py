"""Who is next: answers wait by client, and the client with the fewest running ones, for its weight, is served first."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """First come, first served within a client; among clients by running answers / weight, then by who waited longest.

    Not for several threads.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._waiting: dict[str, deque[Item]] = {}  # the client that was served longest ago comes first
        self._running: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, client: str, item: Item) -> None:
        self._waiting.setdefault(client, deque()).append(item)

    def take(self) -> Item:
        """The next one to run; `done` is to follow."""
        client = min(self._waiting, key=lambda name: self._running[name] / self._weights[name])
        line = self._waiting.pop(client)
        item = line.popleft()
        if line:
            self._waiting[client] = line  # at the end: others with as many running ones are served before it
        self._running[client] += 1
        return item

    def done(self, client: str) -> None:
        """One of a client's running ones has ended."""
        self._running[client] -= 1

    def remove(self, client: str, item: Item) -> None:
        """One that need not run any more."""
        line = self._waiting[client]
        line.remove(item)
        if not line:
            del self._waiting[client]
