"""The whole idea on one page: draft, let the target look at all drafts in one pass, keep what stands.

`step` is the loop; everything else is a part behind one of its words. The engine knows no tokenizer and no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache

import torch

from ..core.distributions.temperature_one import soften
from ..core.rng.keyed import Dice, KeyedDice, LateDice
from ..core.trees.editing import move, part
from ..core.verify import BatchCase, check_pair
from ..draft import Drafter, Round
from ..draft.base import draft_ahead, foresee
from ..runtime import Executor, Output, Rows
from ..runtime.row_layout import upload
from ..types import DraftBatch, Event, Sequence
from ..types.drafts import empty_drafts
from .clock import Clock
from .greedy.captured import decide_greedily, take_swiftly
from .greedy.run_ahead import RunAhead
from .method_group import Turn
from .request import Request
from .sampler import Sampler
from .scheduler import Piece, Scheduler
from .sharing import Sharing
from .validation import check_request

DiceMaker = Callable[[Seq[Sequence]], Dice]


class Engine:
    """Runs requests on one target. Methods and rules are per request; requests that share one take turns together."""

    def __init__(self, executor: Executor, dice: DiceMaker | None = None, sharing: Sharing | None = None) -> None:
        self.executor = executor
        self.sampler = Sampler(executor.vocab_size, executor.device)
        self._dice = dice or self._keyed_dice
        self._rehearsals = 0  # of the executor before the pass
        self._ahead = RunAhead()
        self.share(sharing or Sharing())

    def share(self, sharing: Sharing) -> None:
        """How requests share the machine from now on; for an engine at rest."""
        self.scheduler = Scheduler(self.executor, sharing)
        # Work on a GPU has only begun when a call returns; whoever shares out time must wait for its end.
        self._clock = Clock(self.executor.device if sharing.spending is not None else None)

    @torch.no_grad()
    def step(self) -> list[Event]:
        """One round for every running request; returns what it wrote."""
        self._clock.start()
        self.admit(self.scheduler.admit())  # drafters hear of new requests
        self.read(self.scheduler.next_pieces())  # prompts, a piece at a time
        turns = self.scheduler.next_turns()  # sequences by method, and a draft budget for each
        self.propose(turns)  # a tree per sequence; an empty one is plain decoding
        self.scheduler.select(turns)  # which drafted nodes fit the shared verification budget
        self.forward(turns)  # logits and states at every node: one pass of the target
        self.judge(turns)  # each rule, pure: accepted path, next token, a reason per position
        self.commit(turns)  # keep the K/V of the accepted path, drop the rest
        self.observe(turns)  # heads, pools and online learners look here
        return self.advance(turns)  # streamed, finished

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
        if self.scheduler.spending is not None:
            self.scheduler.spending.read(seconds)

    def propose(self, turns: list[Turn]) -> None:
        """Each drafter is asked once, for all sequences that it drafts for, whatever their rules are."""
        for turn in turns:
            if not turn.drafting:
                turn.drafts = _no_drafts(len(turn.requests), self.executor.device)
        for drafter, members in _by_drafter(turns):
            sequences = [s for turn in members for s in turn.sequences]
            started, begin = self._clock.now(), 0
            drafts = drafter.propose(sequences, self._dice(sequences))
            for turn in members:
                index = range(begin, begin + len(turn.requests))
                turn.drafts = move(part(drafts, index), self.executor.device)
                begin += len(turn.requests)
            if self.scheduler.spending is not None:
                self.scheduler.spending.drafted(drafter, members, self._clock.now() - started)
        self._clock.lap("draft", [r for turn in turns if turn.drafting for r in turn.requests])

    def forward(self, turns: list[Turn]) -> None:
        if not turns:
            return
        rows = []
        running = [s for turn in turns for s in turn.sequences]
        # What a step that failed half-way has left behind must not be built on.
        self.executor.rollback([s.slot for s in running], [len(s.tokens) - 1 for s in running])
        self._rehearsals = self.executor.rehearsals
        calm = self._is_calm(len(running))
        if not calm:
            self._ahead.forget()
        take_swiftly(self.executor, turns, self._ahead if calm else None)  # pass and verdict at once, where that can be
        for turn in turns:
            if turn.summary is not None and turn.method.drafter is not None:
                foresee(turn.method.drafter, turn.out, turn.verdict)  # while the device is busy
                if calm:
                    draft_ahead(turn.method.drafter, turn.sequences, turn.verdict)
        turns = [turn for turn in turns if turn.summary is None]
        for turn in turns:
            root = torch.tensor([s.tokens[-1] for s in turn.sequences], device=self.executor.device)
            rows.append(Rows.trees([s.slot for s in turn.sequences], root, turn.drafts))
        begun = [(turn, row) for turn, row in zip(turns, rows, strict=True) if turn.drafts.started is not None]
        for turn, row in begun:  # a drafter that shares the target's first layers has run them already
            turn.out = _resume(self.executor, row, turn)
        fresh = [(turn, row) for turn, row in zip(turns, rows, strict=True) if turn.drafts.started is None]
        if fresh:
            out = self.executor.forward(Rows.join([row for _, row in fresh]), _taps(_requests([t for t, _ in fresh])))
            begin = 0
            for turn, _ in fresh:
                turn.out = out.part(begin, begin + len(turn.requests))
                begin += len(turn.requests)

    def _is_calm(self, writing: int) -> bool:
        """Whether the next step will most likely be like this one, and nobody times what the device does."""
        scheduler = self.scheduler
        return scheduler.spending is None and not scheduler.waiting and len(scheduler.running) == writing

    def judge(self, turns: list[Turn]) -> None:
        for turn in turns:
            check_pair(turn.method.rule, turn.drafts.kinds, turn.drafts.topology)  # a scheduler may change it
            if turn.summary is None and not decide_greedily(turn, self.case):
                self.decide(turn)
            turn.read_back()  # the one small copy to the host
        seconds = self._clock.lap("verify", _requests(turns))
        if self.scheduler.spending is not None:
            usual = self.executor.rehearsals == self._rehearsals  # else it tells nothing of passes to come
            self.scheduler.spending.observe(turns, seconds if usual else 0.0)

    def decide(self, turn: Turn) -> None:
        """Ask the rule."""
        turn.verdict = turn.method.rule.verify_batch(self.case(turn))

    def case(self, turn: Turn) -> BatchCase:
        """What the rule looks at."""
        rule = turn.method.rule
        turn.rows = rows = self.sampler.rows(turn.requests, turn.drafts, turn.out)
        hidden = turn.out.states(rule.tap) if rule.needs_hidden else None
        soft = soften(rows) if rule.needs_soft else None
        return BatchCase(turn.drafts, rows, self._dice(turn.sequences), hidden, soft)

    def commit(self, turns: list[Turn]) -> None:
        for turn in turns:
            keep = None
            if turn.drafts.branching > 1 and not turn.moved:  # scratch row 0 is the root, node i lies in row i + 1
                keep = torch.cat((torch.zeros_like(turn.verdict.path[:, :1]), turn.verdict.path + 1), dim=1)
            self.executor.commit([s.slot for s in turn.sequences], [len(v.path) + 1 for v in turn.decided], keep)

    def observe(self, turns: list[Turn]) -> None:
        observing = [turn for turn in turns if turn.method.drafter is not None]
        if not observing:
            return
        self._clock.lap("host", _requests(turns))
        for turn in observing:
            assert turn.method.drafter is not None
            accepted = [len(v.path) for v in turn.decided]
            turn.method.drafter.observe(Round(turn.sequences, turn.drafts, turn.out, turn.verdict, accepted))
        self._clock.lap("draft", _requests(observing))

    def advance(self, turns: list[Turn]) -> list[Event]:
        events = []
        for turn in turns:
            for b, request in enumerate(turn.requests):
                events.append(turn.advance(b, self.executor.max_length))
                if request.finish_reason is not None:
                    self._release(request)
        self._clock.lap("host", _requests(turns))
        return events

    def add(self, request: Request) -> None:
        """Queue a request; refuses one that can never run, so that it cannot disturb others later."""
        check_request(request, self.executor)
        if self.scheduler.spending is not None:
            self.scheduler.spending.check(request)
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

    def _keyed_dice(self, sequences: Seq[Sequence]) -> KeyedDice:
        keys = [[s.seed for s in sequences], [s.round for s in sequences], [len(s.tokens) - 1 for s in sequences]]
        return LateDice(lambda: upload(keys, self.executor.device))


@lru_cache(maxsize=64)
def _no_drafts(batch: int, device: torch.device) -> DraftBatch:
    """Nobody writes into drafts, so rounds without any share them."""
    return empty_drafts(batch, device)


def _resume(executor: Executor, rows: Rows, turn: Turn) -> Output:
    """The rest of a pass that drafting has begun."""
    started = turn.drafts.started
    assert started is not None
    streams = torch.cat([started.streams[b, :count] for b, count in enumerate(rows.counts)])
    return executor.resume(rows, streams, started.layer, _taps(turn.requests))


def _requests(turns: list[Turn]) -> list[Request]:
    return [request for turn in turns for request in turn.requests]


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


def _by_drafter(turns: list[Turn]) -> list[tuple[Drafter, list[Turn]]]:
    """Turns that share a drafter and draft this round."""
    found: dict[int, tuple[Drafter, list[Turn]]] = {}
    for turn in turns:
        if turn.method.drafter is not None and turn.drafting:
            found.setdefault(id(turn.method.drafter), (turn.method.drafter, []))[1].append(turn)
    return list(found.values())
