"""The whole idea on one page: draft, let the target look at all drafts in one pass, keep what stands.

`step` is the loop; everything else is a part behind one of its words. The engine knows no tokenizer and no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache

import torch

from ..core.rng.keyed import KeyedRng, LazyRng, Rng
from ..core.trees.editing import move, part
from ..core.verify import BatchCase, check_pair
from ..draft import Drafter, Round
from ..runtime import Executor, Output, Rows
from ..runtime.row_layout import upload
from ..types import DraftBatch, Event, Sequence
from ..types.drafts import empty_drafts
from .clock import Clock
from .greedy.captured import verify_captured, verify_greedy
from .greedy.run_ahead import RunAhead
from .method_group import MethodGroup
from .request import Request
from .sampler import Sampler
from .scheduler import Piece, Scheduler
from .sharing import Sharing
from .validation import check_request

RngMaker = Callable[[Seq[Sequence]], Rng]


class Engine:
    """Runs requests on one target. Methods and rules are per request; requests that share one take groups together."""

    def __init__(self, executor: Executor, rng: RngMaker | None = None, sharing: Sharing | None = None) -> None:
        self.executor = executor
        self.sampler = Sampler(executor.vocab_size, executor.device)
        self._rng = rng or self._keyed_rng
        self._captures = 0  # of the executor before the pass
        self._ahead = RunAhead()
        self.share(sharing or Sharing())

    def share(self, sharing: Sharing) -> None:
        """How requests share the machine from now on; for an engine at rest."""
        self.scheduler = Scheduler(self.executor, sharing)
        # Work on a GPU has only begun when a call returns; whoever shares out time must wait for its end.
        self._clock = Clock(self.executor.device if sharing.planner is not None else None)

    @torch.no_grad()
    def step(self) -> list[Event]:
        """One round for every running request; returns what it wrote."""
        self._clock.start()
        self.admit(self.scheduler.admit())  # drafters hear of new requests
        self.read(self.scheduler.next_pieces())  # prompts, a piece at a time
        groups = self.scheduler.next_groups()  # sequences by method, and a draft budget for each
        self.propose(groups)  # a tree per sequence; an empty one is plain decoding
        self.scheduler.select(groups)  # which drafted nodes fit the shared verification budget
        self.forward(groups)  # logits and states at every node: one pass of the target
        self.judge(groups)  # each rule, pure: accepted path, next token, a reason per position
        self.commit(groups)  # keep the K/V of the accepted path, drop the rest
        self.observe(groups)  # heads, pools and online learners look here
        return self.advance(groups)  # streamed, finished

    def admit(self, new: list[Request]) -> None:
        """Begin requests, and show drafters what the target still knows of their prompts."""
        for request in new:
            if self.executor.length(request.sequence.slot) < request.read:  # somebody else has emptied the slot
                request.read, request.stats.reused, request.states = 0, 0, []
        for drafter, members in _share_drafter(new):
            drafter.begin([new[i].sequence for i in members])
            known = [new[i] for i in members if new[i].states]
            if known:
                drafter.observe_prefill([r.sequence for r in known], [0] * len(known), [r.states[0] for r in known])
        self._clock.lap("prefill", new)

    def read(self, pieces: list[Piece]) -> None:
        """Read prompts on, up to their last token, which the first round reads with its drafts."""
        if not pieces:
            return
        requests, begins = [piece.request for piece in pieces], [piece.begin for piece in pieces]
        slots = [request.sequence.slot for request in requests]
        self.executor.rollback(slots, begins)  # what another text, or a step that failed, has left behind
        hidden = self.executor.prefill(slots, [piece.tokens for piece in pieces], _taps(requests))
        for drafter, members in _share_drafter(requests):
            if drafter.taps:
                sequences = [requests[i].sequence for i in members]
                drafter.observe_prefill(sequences, [begins[i] for i in members], [hidden[i] for i in members])
        for piece, states in zip(pieces, hidden, strict=True):
            piece.request.read = piece.end
            if self.scheduler.slots.reuse and piece.request.taps:
                piece.request.states.append({tap: states[tap] for tap in piece.request.taps})
        seconds = self._clock.lap("prefill", requests)
        if self.scheduler.planner is not None:
            self.scheduler.planner.read(seconds)

    def propose(self, groups: list[MethodGroup]) -> None:
        """Each drafter is asked once, for all sequences that it drafts for, whatever their rules are."""
        for group in groups:
            if not group.drafting:
                group.drafts = _no_drafts(len(group.requests), self.executor.device)
        for drafter, members in _by_drafter(groups):
            sequences = [s for group in members for s in group.sequences]
            started, begin = self._clock.now(), 0
            drafts = drafter.propose(sequences, self._rng(sequences))
            for group in members:
                index = range(begin, begin + len(group.requests))
                group.drafts = move(part(drafts, index), self.executor.device)
                begin += len(group.requests)
            if self.scheduler.planner is not None:
                self.scheduler.planner.drafted(drafter, members, self._clock.now() - started)
        self._clock.lap("draft", [r for group in groups if group.drafting for r in group.requests])

    def forward(self, groups: list[MethodGroup]) -> None:
        if not groups:
            return
        rows = []
        running = [s for group in groups for s in group.sequences]
        # What a step that failed half-way has left behind must not be built on.
        self.executor.rollback([s.slot for s in running], [len(s.tokens) - 1 for s in running])
        self._captures = self.executor.captures
        steady = self._is_steady(len(running))
        if not steady:
            self._ahead.forget()
        verify_captured(
            self.executor, groups, self._ahead if steady else None
        )  # pass and verdict at once, where that can be
        for group in groups:
            if group.summary is not None and group.method.drafter is not None:
                group.method.drafter.prefetch(group.sequences, group.out, group.verdict)  # while the device is busy
                if steady:
                    group.method.drafter.draft_ahead(group.sequences, group.verdict)
        groups = [group for group in groups if group.summary is None]
        for group in groups:
            root = torch.tensor([s.tokens[-1] for s in group.sequences], device=self.executor.device)
            rows.append(Rows.trees([s.slot for s in group.sequences], root, group.drafts))
        begun = [(group, row) for group, row in zip(groups, rows, strict=True) if group.drafts.started is not None]
        for group, row in begun:  # a drafter that shares the target's first layers has run them already
            group.out = _resume(self.executor, row, group)
        fresh = [(group, row) for group, row in zip(groups, rows, strict=True) if group.drafts.started is None]
        if fresh:
            out = self.executor.forward(Rows.join([row for _, row in fresh]), _taps(_requests([t for t, _ in fresh])))
            begin = 0
            for group, _ in fresh:
                group.out = out.part(begin, begin + len(group.requests))
                begin += len(group.requests)

    def _is_steady(self, writing: int) -> bool:
        """Whether the next step will most likely be like this one, and nobody times what the device does."""
        scheduler = self.scheduler
        return scheduler.planner is None and not scheduler.waiting and len(scheduler.running) == writing

    def judge(self, groups: list[MethodGroup]) -> None:
        for group in groups:
            check_pair(group.method.rule, group.drafts.kinds, group.drafts.topology)  # a scheduler may change it
            if group.summary is None and not verify_greedy(group, self.case):
                self.decide(group)
            group.read_back()  # the one small copy to the host
        seconds = self._clock.lap("verify", _requests(groups))
        if self.scheduler.planner is not None:
            usual = self.executor.captures == self._captures  # else it tells nothing of passes to come
            self.scheduler.planner.observe(groups, seconds if usual else 0.0)

    def decide(self, group: MethodGroup) -> None:
        """Ask the rule."""
        group.verdict = group.method.rule.verify_batch(self.case(group))

    def case(self, group: MethodGroup) -> BatchCase:
        """What the rule looks at."""
        rule = group.method.rule
        group.rows = rows = self.sampler.rows(group.requests, group.drafts, group.out)
        hidden = group.out.states(rule.tap) if rule.needs_hidden else None
        temperature_one = rows.at_temperature_one() if rule.needs_temperature_one else None
        return BatchCase(group.drafts, rows, self._rng(group.sequences), hidden, temperature_one)

    def commit(self, groups: list[MethodGroup]) -> None:
        for group in groups:
            keep = None
            if group.drafts.branching > 1 and not group.moved:  # scratch row 0 is the root, node i lies in row i + 1
                keep = torch.cat((torch.zeros_like(group.verdict.path[:, :1]), group.verdict.path + 1), dim=1)
            self.executor.commit([s.slot for s in group.sequences], [len(v.path) + 1 for v in group.decided], keep)

    def observe(self, groups: list[MethodGroup]) -> None:
        observing = [group for group in groups if group.method.drafter is not None]
        if not observing:
            return
        self._clock.lap("host", _requests(groups))
        for group in observing:
            assert group.method.drafter is not None
            accepted = [len(v.path) for v in group.decided]
            group.method.drafter.observe(Round(group.sequences, group.drafts, group.out, group.verdict, accepted))
        self._clock.lap("draft", _requests(observing))

    def advance(self, groups: list[MethodGroup]) -> list[Event]:
        events = []
        for group in groups:
            for b, request in enumerate(group.requests):
                events.append(group.advance(b, self.executor.max_length))
                if request.finish_reason is not None:
                    self._release(request)
        self._clock.lap("host", _requests(groups))
        return events

    def add(self, request: Request) -> None:
        """Queue a request; refuses one that can never run, so that it cannot disturb others later."""
        check_request(request, self.executor)
        if self.scheduler.planner is not None:
            self.scheduler.planner.check(request)
        request.started = time.perf_counter()
        request.stats.executor = self.executor.name
        self.scheduler.add(request)

    def cancel(self, request: Request, reason: str = "cancelled") -> None:
        """Stop a request between two steps; its slot is free at once."""
        if request.finish_reason is None:
            request.finish_reason = reason
            self._release(request)

    def _release(self, request: Request) -> None:
        self.scheduler.release(request)
        request.close()
        if request.method.drafter is not None:
            request.method.drafter.end([request.sequence])

    def _keyed_rng(self, sequences: Seq[Sequence]) -> KeyedRng:
        keys = [[s.seed for s in sequences], [s.round for s in sequences], [len(s.tokens) - 1 for s in sequences]]
        return LazyRng(lambda: upload(keys, self.executor.device))


@lru_cache(maxsize=64)
def _no_drafts(batch: int, device: torch.device) -> DraftBatch:
    """Nobody writes into drafts, so rounds without any share them."""
    return empty_drafts(batch, device)


def _resume(executor: Executor, rows: Rows, group: MethodGroup) -> Output:
    """The rest of a pass that drafting has begun."""
    started = group.drafts.started
    assert started is not None
    streams = torch.cat([started.streams[b, :count] for b, count in enumerate(rows.counts)])
    return executor.resume(rows, streams, started.layer, _taps(group.requests))


def _requests(groups: list[MethodGroup]) -> list[Request]:
    return [request for group in groups for request in group.requests]


def _taps(requests: list[Request]) -> frozenset[int]:
    """Target states that some drafter or rule among the requests wants."""
    wanted: set[int] = set()
    for method in {id(r.method): r.method for r in requests}.values():
        wanted |= method.taps
    return frozenset(wanted)


def _share_drafter(requests: list[Request]) -> list[tuple[Drafter, list[int]]]:
    """Indices of the requests that share a drafter."""
    found: dict[int, tuple[Drafter, list[int]]] = {}
    for i, request in enumerate(requests):
        drafter = request.method.drafter
        if drafter is not None:
            found.setdefault(id(drafter), (drafter, []))[1].append(i)
    return list(found.values())


def _by_drafter(groups: list[MethodGroup]) -> list[tuple[Drafter, list[MethodGroup]]]:
    """Turns that share a drafter and draft this round."""
    found: dict[int, tuple[Drafter, list[MethodGroup]]] = {}
    for group in groups:
        if group.method.drafter is not None and group.drafting:
            found.setdefault(id(group.method.drafter), (group.method.drafter, []))[1].append(group)
    return list(found.values())
