"""Who runs: admits requests to K/V slots, shares out prompt reading and drafting, and groups requests by method."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..runtime import Executor
from ..types import Budget
from ..types.drafts import NO_BUDGET
from .method_group import MethodGroup
from .request import Request
from .sharing import Sharing
from .slots import SlotPool


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a request's text that are read in one step."""

    request: Request
    begin: int
    end: int

    @property
    def tokens(self) -> list[int]:
        return self.request.sequence.tokens[self.begin : self.end]


class Scheduler:
    """First come, first served, as many at a time as there are slots."""

    def __init__(self, executor: Executor, sharing: Sharing) -> None:
        self.max_length, self.max_nodes, self.pads_rows = (
            executor.max_length,
            executor.max_scratch - 1,
            executor.pads_rows,
        )
        self.prompt_budget = sharing.prompt_tokens or executor.max_slots * executor.max_length
        self.planner = sharing.planner
        self.slots = SlotPool(executor.max_slots, sharing.reuse)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # those with a slot, in the order in which they got it

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Give waiting requests the free slots; returns those that begin now."""
        new = []
        while self.waiting and len(self.slots):
            request = self.waiting.popleft()
            text = request.sequence.tokens
            namespace = None if request.scores_prompt else request.sequence.reuse_key  # None = nothing is reused
            request.sequence.slot, kept = self.slots.take(text, request.taps, namespace)
            request.read = request.stats.reused = kept.shared(text, request.taps, namespace)
            request.states = [kept.first(request.read, request.taps)] if request.read and request.taps else []
            self.running.append(request)
            new.append(request)
        return new

    def next_pieces(self) -> list[Piece]:
        """What is read of prompts in this step. First come, first served; none waits while budget is left."""
        pieces, left = [], self.prompt_budget
        for request in self.running:
            if request.reading and left > 0:
                end = min(len(request.sequence.tokens) - 1, request.read + left)
                pieces.append(Piece(request, request.read, end))
                left -= end - request.read
        return pieces

    def next_groups(self) -> list[MethodGroup]:
        """The requests that write, by method; sets everyone's draft limit for this round."""
        groups: dict[tuple[int, bool], MethodGroup] = {}
        writing = [request for request in self.running if not request.reading]
        for request in writing:
            request.sequence.budget = self._budget(request)
        if self.planner is not None:
            self.planner.plan(writing, self.pads_rows)
        for request in writing:
            drafting = request.sequence.budget.chain > 0
            key = (id(request.method), drafting)
            if key not in groups:
                groups[key] = MethodGroup(request.method, [], drafting)
            groups[key].requests.append(request)
        return list(groups.values())

    def _budget(self, request: Request) -> Budget:
        """The last token of a request needs no draft after it, and no draft fits after the context."""
        sequence, drafter = request.sequence, request.method.drafter
        if drafter is None:
            return NO_BUDGET
        ends = min(self.max_length, drafter.max_length) - len(sequence.tokens)
        longest = request.method.draft_length or ends
        return Budget(min(drafter.nodes, self.max_nodes), max(0, min(sequence.room - 1, ends, longest)))

    def select(self, groups: list[MethodGroup]) -> None:
        """Which drafted nodes are verified. What is drawn is never dropped for what it is (invariant 5)."""
        if self.planner is not None:
            self.planner.select(groups)

    def release(self, request: Request) -> None:
        """Take a finished or cancelled request out; its slot is free at once."""
        if request in self.running:
            self.running.remove(request)
            self.slots.give(request.sequence.slot, request.kept)
        elif request in self.waiting:
            self.waiting.remove(request)
        if self.planner is not None:
            self.planner.end(request)
