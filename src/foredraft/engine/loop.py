"""The whole idea on one page: draft, run the target over all drafts in one pass, keep what its rule accepts.

`step` is the loop; everything else is a part behind one of its words. At temperature 0 verification takes a fast path
(`greedy/fast_path.py`) that gives the verdicts of the rules. The engine knows no tokenizer and no text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import lru_cache

import torch

from ..core.rng.keyed import KeyedRng, LazyRng, Rng
from ..core.trees.editing import move, part
from ..core.verify import BatchCase, check_pair
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..core.verify.one_by_one import verify_one_by_one
from ..draft import Drafter, Round
from ..errors import KVFullError
from ..runtime import Executor
from ..runtime.row_layout import upload
from ..types import DraftBatch, Event, Sequence, Verdict
from ..types.drafts import empty_drafts
from .clock import Clock
from .greedy.fast_path import GreedyFastPath
from .method_group import MethodGroup, groups_by_drafter, requests_by_drafter, requests_of, taps_of
from .passes import forward_groups, read_pieces
from .request import Request, count_moved
from .sampler import Sampler
from .scheduler import Piece, Scheduler
from .sharing import Sharing
from .validation import check_drafts, check_request
from .windowed.windowed_loop import WindowedLoop

log = logging.getLogger(__name__)
RngMaker = Callable[[Seq[Sequence]], Rng]


class Engine:
    """Runs requests on one target. Methods and rules are per request; requests that share a method run as one group."""

    def __init__(self, executor: Executor, rng: RngMaker | None = None, sharing: Sharing | None = None) -> None:
        self.executor = executor
        self.sampler = Sampler(executor.vocab_size, executor.device, executor.max_slots)
        self.rng = rng or self._keyed_rng
        self.fast_path = GreedyFastPath(executor, self.sampler, rng is None)  # verdicts without asking the rule
        self.windowed = WindowedLoop(self)  # for methods that draft while the target verifies
        self._captures = 0  # of the executor before the pass
        self.share(sharing or Sharing())

    def share(self, sharing: Sharing) -> None:
        """How requests share the machine from now on; for an engine at rest."""
        self.scheduler, self.clock = Scheduler(self.executor, sharing), Clock(self.executor.device)

    @torch.no_grad()
    def step(self) -> list[Event]:
        """One round for every running request; returns what it wrote."""
        self.clock.start()
        self._captures = self.executor.captures
        self.admit(self.scheduler.admit())  # drafters learn of new requests
        self.read(self.scheduler.next_pieces())  # prompts, a piece at a time
        self.put_back(self.scheduler.find_memory(self.windowed.flying))  # whoever gets none waits again
        groups = self.scheduler.next_groups()  # sequences by method, and a draft budget for each
        groups = self.fast_path.without_newcomers(groups)  # a round may be under way already
        self.clock.waits = self.scheduler.timed
        windows, groups = self.windowed.take(groups)  # drafters that work ahead have a loop of their own
        self.windowed.step(windows, alone=not groups)
        self.propose(groups)  # a tree per sequence; an empty one is plain decoding
        self.scheduler.select(groups)  # which drafted nodes fit the shared verification budget
        self.forward(groups)  # logits and states at every node: one pass of the target
        self.verify(groups)  # each rule, pure: accepted path, next token, a reason per position
        self.commit(groups)  # keep the K/V of the accepted path, drop the rest
        self.observe(groups)  # heads and online learners look here
        events = [*self.advance(groups), *self.windowed.drain()]  # streamed, finished
        if events and self.executor.captures == self._captures:  # else it says nothing about steps to come
            self.scheduler.stepped(self.clock.elapsed)
        return events

    def admit(self, new: list[Request]) -> None:
        """Begin requests, and show drafters what the target still knows of their prompts."""
        for request in new:
            self.executor.adapt(request.sequence.slot, request.sequence.adapter)
        for drafter, members in requests_by_drafter(new):
            drafter.begin([new[i].sequence for i in members])
            known = [new[i] for i in members if new[i].states]
            if known:
                drafter.observe_prefill([r.sequence for r in known], [0] * len(known), [r.states[0] for r in known])
        self.clock.lap("prefill", new)

    def put_back(self, requests: list[Request]) -> None:
        """Requests that lost their memory begin once more, some day."""
        for request in requests:
            self._leave_slot(request)
            if request.method.drafter is not None:
                request.method.drafter.end([request.sequence])

    def read(self, pieces: list[Piece]) -> None:
        """Read prompts on, up to their last token, which the first round reads with its drafts."""
        if not pieces:
            return
        requests, begins = [piece.request for piece in pieces], [piece.begin for piece in pieces]
        slots = [request.sequence.slot for request in requests]
        self.executor.rollback(slots, begins)  # what another text, or a step that failed, has left
        hidden = read_pieces(self.executor, pieces, taps_of(requests))
        for drafter, members in requests_by_drafter(requests):
            if drafter.taps:
                sequences, before = [requests[i].sequence for i in members], drafter.moved
                drafter.observe_prefill(sequences, [begins[i] for i in members], [hidden[i] for i in members])
                count_moved([requests[i] for i in members], drafter.moved - before)
        for piece, states in zip(pieces, hidden, strict=True):
            piece.request.read = piece.end
            if self.scheduler.slots.reuse and piece.request.taps:
                piece.request.states.append({tap: states[tap] for tap in piece.request.taps})
        seconds = self.clock.lap("prefill", requests)
        if self.scheduler.planner is not None:
            self.scheduler.planner.read(seconds)

    def propose(self, groups: list[MethodGroup]) -> None:
        """Each drafter is asked once, for all sequences that it drafts for, whatever their rules are."""
        for group in groups:
            if not group.drafting:
                group.drafts = _no_drafts(len(group.requests), self.executor.device)
        for drafter, members in groups_by_drafter(groups):
            sequences = [s for group in members for s in group.sequences]
            started, begin = self.clock.now(), 0
            drafts = check_drafts(drafter, self._drafts(drafter, sequences), len(sequences))
            for group in members:
                index = range(begin, begin + len(group.requests))
                group.drafts = move(part(drafts, index), self.executor.device)
                begin += len(group.requests)
            if self.scheduler.planner is not None:
                self.scheduler.planner.drafted(drafter, members, self.clock.now() - started)
        self.clock.lap("draft", [r for group in groups if group.drafting for r in group.requests])

    def _drafts(self, drafter: Drafter, sequences: list[Sequence]) -> DraftBatch:
        """None at all where the drafter has no memory for more text: a round without drafts is always allowed."""
        try:
            return drafter.propose(sequences, self.rng(sequences))
        except KVFullError as error:
            log.info("drafter %s drafts nothing: %s", drafter.name, error)
            return _no_drafts(len(sequences), self.executor.device)

    def forward(self, groups: list[MethodGroup]) -> None:
        if not groups:
            return
        running = [s for group in groups for s in group.sequences]
        # What a step that failed half-way has left must not be built on.
        self.executor.rollback([s.slot for s in running], [len(s.tokens) - 1 for s in running])
        rest = self.fast_path.forward(groups, self._is_steady(len(running)))  # pass and verdict in one CUDA graph
        forward_groups(self.executor, rest)

    def _is_steady(self, writing: int) -> bool:
        """Whether the next step will most likely be like this one, and nobody times what the device does."""
        scheduler = self.scheduler
        return scheduler.untimed and len(scheduler.running) == writing

    def verify(self, groups: list[MethodGroup]) -> None:
        """Each group's rule. `fast_path` gives the same verdicts at temperature 0, without distributions."""
        for group in groups:
            check_pair(group.method.rule, group.drafts.kinds, group.drafts.topology)  # a scheduler may change it
            if not self.fast_path.verify(group, self.case):
                group.verdict = self._verdict(group, alone=len(groups) == len(group.requests) == 1)
            group.read_back()  # the one small copy to the host
        seconds = self.clock.lap("verify", requests_of(groups))
        if self.scheduler.planner is not None:
            usual = self.scheduler.timed and self.executor.captures == self._captures  # else it is no pass to go by
            self.scheduler.planner.observe(groups, seconds if usual else 0.0)

    def _verdict(self, group: MethodGroup, alone: bool) -> Verdict:
        """What the group's rule says. One that raises must hurt its own request only: that one goes on without it."""
        case = self.case(group)
        try:
            return group.method.rule.verify_batch(case)
        except Exception:
            if alone:
                raise
        verdict, raised = verify_one_by_one(group.method.rule, case)
        for index, error in raised.items():
            request = group.requests[index]
            log.warning("rule %s failed, request %d goes on without: %r", group.method.rule.name, request.id, error)
            request.method = replace(request.method, rule=SAMPLE_AND_MATCH)
        return verdict

    def case(self, group: MethodGroup) -> BatchCase:
        """What the rule looks at."""
        rule = group.method.rule
        group.rows = rows = self.sampler.rows(group.requests, group.drafts, group.out)
        hidden = group.out.states(rule.tap) if rule.needs_hidden else None
        temperature_one = rows.at_temperature_one() if rule.needs_temperature_one else None
        return BatchCase(group.drafts, rows, self.rng(group.sequences), hidden, temperature_one)

    def commit(self, groups: list[MethodGroup]) -> None:
        for group in groups:
            keep = None
            if group.scattered:  # scratch row 0 is the root, node i lies in row i + 1
                keep = torch.cat((torch.zeros_like(group.verdict.path[:, :1]), group.verdict.path + 1), dim=1)
            self.executor.commit([s.slot for s in group.sequences], [len(v.path) + 1 for v in group.decided], keep)

    def observe(self, groups: list[MethodGroup]) -> None:
        observing = [group for group in groups if group.method.drafter is not None and not group.resting]
        if not observing:
            return
        self.clock.lap("host", requests_of(groups))
        for group in observing:
            assert group.method.drafter is not None
            accepted, before = [len(v.path) for v in group.decided], group.method.drafter.moved
            parts = group.sequences, group.drafts, group.out, group.verdict, accepted
            group.method.drafter.observe(Round(*parts, group.early))
            count_moved(group.requests, group.method.drafter.moved - before)
        self.clock.lap("draft", requests_of(observing))

    def advance(self, groups: list[MethodGroup]) -> list[Event]:
        events = []
        for group in groups:
            for b, request in enumerate(group.requests):
                events.append(group.advance(b, self.executor.max_length))
                if request.finish_reason is not None:
                    self.release(request)
        self.clock.lap("host", requests_of(groups))
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
        if request.finish_reason is None or self.scheduler.holds(request):  # a step may have failed at its end
            request.finish_reason = reason
            self.release(request)

    def release(self, request: Request) -> None:
        """Take a request out whose end is known."""
        if request in self.scheduler.running:
            self._leave_slot(request)
        self.scheduler.release(request)
        request.close()
        if request.method.drafter is not None:
            request.method.drafter.end([request.sequence])

    def _leave_slot(self, request: Request) -> None:
        self.windowed.forget(request)
        if request.sequence.adapter is not None:
            self.executor.adapt(request.sequence.slot, None)  # whoever reads there next has the plain model

    def _keyed_rng(self, sequences: Seq[Sequence]) -> KeyedRng:
        keys = [[s.seed for s in sequences], [s.round for s in sequences], [len(s.tokens) - 1 for s in sequences]]
        return LazyRng(lambda: upload(keys, self.executor.device))


@lru_cache(maxsize=64)
def _no_drafts(batch: int, device: torch.device) -> DraftBatch:
    """Drafts are never written to, so rounds without any share them."""
    return empty_drafts(batch, device)
