"""Who runs: admits requests to K/V slots, shares out prompt reading and drafting, and groups requests by method.

Where slots share the memory of keys and values, a request begins when there is memory for its text, and some more for
those that run. If it is used up nevertheless, the newest request goes back to the front of the queue and is read again
later; the oldest always goes on, so everyone ends some day.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from ..runtime import Executor
from ..types import Budget
from ..types.drafts import NO_BUDGET
from .method_group import MethodGroup, groups_by_drafter
from .request import Request
from .sharing import ReadingPace, Sharing
from .slots import Kept, SlotPool

log = logging.getLogger(__name__)
LET_GO = 16  # steps after which drafters are asked whom of the running ones they decline
SPARE = 128  # tokens by which each running request may grow before another one begins


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
        self.executor = executor
        self.prompt_budget = sharing.prompt_tokens or executor.max_slots * executor.max_length
        self.beside = min(self.prompt_budget, sharing.beside or self.prompt_budget)
        self.pace = None if sharing.growth is None else ReadingPace(sharing.growth)
        self._steps = 0
        self._reads = False  # whether this step reads prompts while others write
        self.planner = sharing.planner
        self.timed = False  # whether somebody must know what this step's work takes
        self.slots = SlotPool(executor.max_slots, sharing.reuse)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # those with a slot, in the order in which they got it

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def untimed(self) -> bool:
        """Whether nobody times this step's work or, as far as is known, the next one's."""
        return not self.timed and (self.planner is None or not self.planner.due)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def holds(self, request: Request) -> bool:
        return request in self.running or request in self.waiting

    def admit(self) -> list[Request]:
        """Give waiting requests the free slots; returns those that begin now. The first that lacks memory waits."""
        new = []
        while self.waiting and len(self.slots) and self._find_slot(self.waiting[0]):
            request = self.waiting.popleft()
            self.running.append(request)
            new.append(request)
        return new

    def _find_slot(self, request: Request) -> bool:
        """A slot with memory for the request's text, and what is known of it there; False where it has to wait."""
        if self._declined(request, len(self.running) + 1):
            request.method = request.method.undrafted
        text, taps = request.sequence.tokens, request.taps
        namespace = None if request.scores_prompt else request.sequence.reuse_key  # None = nothing is reused
        slot = self.slots.find(text, taps, namespace)
        kept = self.slots.holds(slot)
        read = kept.shared(text, taps, namespace)
        if self.executor.length(slot) < read:  # somebody else has emptied the slot
            read = 0
        if not self._make_room(len(text) - read + 1 + SPARE * len(self.running), slot):
            if self.running:
                return False
            self._empty(slot)  # alone it has all the memory there is
            read = 0
        self.slots.take(text, taps, namespace)
        if self.executor.length(slot) > read:
            self.executor.rollback([slot], [read])
        self.executor.hold(slot, len(text) - read + 1)
        request.sequence.slot, request.read, request.stats.reused = slot, read, read
        request.states = [kept.first(read, taps)] if read and taps else []
        return True

    def _declined(self, request: Request, running: int) -> bool:
        drafter = request.method.drafter
        return drafter is not None and drafter.declines(request.sequence, running)

    def _let_go(self) -> None:
        """Drafters may decline those who run, too."""
        for request in self.running:
            drafter = request.method.drafter
            if drafter is not None and not request.reading and self._declined(request, len(self.running)):
                drafter.end([request.sequence])
                request.method = request.method.undrafted

    def _make_room(self, rows: int, spared: int | None = None) -> bool:
        """Whether so many rows are free, if need be at the cost of what free slots keep; `spared` keeps it."""
        for slot in self.slots if self.executor.room < rows else ():
            if slot != spared:
                self._empty(slot)
            if self.executor.room >= rows:
                break
        return self.executor.room >= rows

    def _empty(self, slot: int) -> None:
        self.executor.drop(slot)
        self.slots.forget(slot)

    def find_memory(self, busy: Collection[int] = ()) -> list[Request]:
        """Memory for the rows of this step, the oldest requests first; returns those that lost theirs and wait again.

        busy: requests that must stay as they are.
        """
        back: list[Request] = []
        for request in list(self.running):
            if request.reading or request.id in busy or request in back:
                continue
            while not self._hold(request):
                losers = [other for other in self.running if other.id not in busy]
                back.append(losers[-1])
                self._put_back(losers[-1])
                if losers[-1] is request:
                    break
        return back

    def _hold(self, request: Request) -> bool:
        """Rows of a round, and the one that may be begun ahead."""
        drafter, slot = request.method.drafter, request.sequence.slot
        rows = 2 + (0 if drafter is None else min(drafter.nodes, self.max_nodes))
        return self.executor.hold(slot, rows) or (self._make_room(rows) and self.executor.hold(slot, rows))

    def _put_back(self, request: Request) -> None:
        """Its text is read again when there is memory for it."""
        log.info("K/V cache: request %d waits again, %d tokens are read once more", request.id, request.read)
        self.running.remove(request)
        self.executor.drop(request.sequence.slot)
        self.slots.give(request.sequence.slot, Kept())
        request.read, request.states = 0, []
        self.waiting.appendleft(request)

    def next_pieces(self) -> list[Piece]:
        """What is read of prompts in this step. First come, first served; none waits while budget is left."""
        reading = [request for request in self.running if request.reading]
        writing = len(self.running) - len(reading)
        self._reads = bool(reading and writing)
        if self._reads and self.pace is not None:
            self._reads = self.pace.may_read(writing, len(reading) + len(self.waiting))
            reading = reading if self._reads else []
        pieces, left = [], self.beside if writing else self.prompt_budget
        for request in reading:
            if left > 0:
                end = min(len(request.sequence.tokens) - 1, request.read + left)
                pieces.append(Piece(request, request.read, end))
                left -= end - request.read
        return pieces

    def stepped(self, seconds: float) -> None:
        """A step in which somebody wrote took so long."""
        if self.pace is not None:
            self.pace.observe(seconds, self._reads)

    def next_groups(self) -> list[MethodGroup]:
        """The requests that write, by method; sets everyone's draft limit for this round."""
        groups: dict[tuple[int, bool], MethodGroup] = {}
        self._steps += 1
        if self._steps % LET_GO == 0:
            self._let_go()
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
        found = list(groups.values())
        for drafter, members in groups_by_drafter(found):
            drafter.beside = len(writing) - sum(len(group.requests) for group in members)
            if drafter.rests([s for group in members for s in group.sequences]):
                for group in members:
                    group.drafting, group.idle = False, True
        self.timed = self.planner is not None and self.planner.wants_time(found)
        return found

    def _budget(self, request: Request) -> Budget:
        """The last token of a request needs no draft after it, and no draft fits after the context.

        Where passes are padded, drafts go on beyond a request's end, and what is too much is cut when it is handed out:
        rounds of one size are one CUDA graph, and a smaller one would go step by step.
        """
        sequence, drafter = request.sequence, request.method.drafter
        if drafter is None:
            return NO_BUDGET
        ends = min(self.max_length, drafter.max_length) - len(sequence.tokens)
        longest = request.method.draft_length or ends
        room = sequence.room - 1 if sequence.room <= 1 or not self.pads_rows else ends
        return Budget(min(drafter.nodes, self.max_nodes), max(0, min(room, ends, longest)))

    def select(self, groups: list[MethodGroup]) -> None:
        """Which drafted nodes are verified. What is drawn is never dropped for what it is (invariant 5)."""
        if self.planner is not None:
            self.planner.select(groups)

    def release(self, request: Request) -> None:
        """Take a finished or cancelled request out; its slot is free at once."""
        if request in self.running:
            self.running.remove(request)
            self._leave(request.sequence.slot, request.kept)
        elif request in self.waiting:
            self.waiting.remove(request)
        if self.planner is not None:
            self.planner.end(request)

    def _leave(self, slot: int, kept: Kept) -> None:
        """A slot whose text nobody may go on with gives its memory back at once."""
        if not (self.slots.reuse and kept.tokens):
            self.executor.drop(slot)
        self.slots.give(slot, kept)
