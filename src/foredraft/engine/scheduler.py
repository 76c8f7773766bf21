"""Who runs: admits requests to K/V slots, groups them by method, and gives each its share of drafting.

It knows no tensors: lengths, limits and order only.
"""

from __future__ import annotations

from collections import deque

from ..types import Budget
from .request import Request
from .turn import Turn


class Scheduler:
    """First come, first served, as many at a time as there are slots."""

    def __init__(self, slots: int, max_length: int, max_nodes: int) -> None:
        self.max_length, self.max_nodes = max_length, max_nodes
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free = list(range(slots))[::-1]

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Give waiting requests the free slots; returns those that must be prefilled now."""
        new = []
        while self.waiting and self._free:
            request = self.waiting.popleft()
            request.sequence.slot = self._free.pop()
            self.running.append(request)
            new.append(request)
        return new

    def next_turns(self) -> list[Turn]:
        """The running requests by method; sets everyone's draft limit for this round."""
        turns: dict[tuple[int, bool], Turn] = {}
        for request in self.running:
            request.sequence.budget = self._budget(request)
            drafting = request.sequence.budget.chain > 0
            key = (id(request.method), drafting)
            turns.setdefault(key, Turn(request.method, [], drafting)).requests.append(request)
        return list(turns.values())

    def _budget(self, request: Request) -> Budget:
        """The last token of a request needs no draft behind it, and no draft fits behind the context."""
        sequence, drafter = request.sequence, request.method.drafter
        if drafter is None:
            return Budget(0, 0)
        ends = min(self.max_length, drafter.max_length) - len(sequence.tokens)
        longest = request.method.draft_length or ends
        return Budget(min(drafter.nodes, self.max_nodes), max(0, min(sequence.room - 1, ends, longest)))

    def select(self, turns: list[Turn]) -> None:
        """Which drafted nodes are verified. Limits were set before drafting, so nothing drawn is dropped (law 5)."""

    def release(self, request: Request) -> None:
        """Take a finished or cancelled request out; its slot is free at once."""
        if request in self.running:
            self.running.remove(request)
            self._free.append(request.sequence.slot)
        elif request in self.waiting:
            self.waiting.remove(request)
