"""The loop for drafters that go on while the target verifies: begin to draft, run the target, wait once, verify.

It stands beside `Engine.step` and shares its parts: sampler, rules, greedy fast path, slots, statistics. A request is
in flight from the moment its drafter is started until its window is verified. One whose drafter lags is left in flight
while other requests go on; what is verified never depends on who was done first.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from ...control.overlap import Plan
from ...core.distributions.tensors import PointMasses, TableDistributions
from ...core.trees.editing import move
from ...core.trees.layout import trees
from ...core.verify import check_pair
from ...draft.neural.ahead_drafter import AheadDrafter, Branch
from ...runtime import Output
from ...runtime.lanes import Span, Watch, own_threads
from ...types import Distributions, DraftBatch, Event, Kind
from ...types.drafts import chains
from ..method_group import MethodGroup
from ..passes import forward_groups
from ..request import Request
from .window import count_tests, emitted, late_tree, next_ready, room_ahead

if TYPE_CHECKING:
    from ..loop import Engine


@dataclass(slots=True, eq=False)
class Flight:
    """The requests of one drafter in a window."""

    group: MethodGroup
    ready: list[Branch]
    drafting: list[int]  # those of the requests for which the drafter drafts on
    ahead: Future[list[list[Branch]]] | None  # a list for each of them
    watch: Watch | None = None  # of its pass

    @property
    def done(self) -> bool:
        return self.ahead is None or self.ahead.done()

    def branches(self) -> list[list[Branch]]:
        """For every request; waits for the drafter."""
        found: list[list[Branch]] = [[] for _ in self.group.requests]
        if self.ahead is not None:
            for b, branches in zip(self.drafting, self.ahead.result(), strict=True):
                found[b] = branches
        return found


class WindowedLoop:
    """Runs the groups whose drafter works ahead."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ready: dict[int, Branch] = {}  # request id -> drafts that wait for verification
        self._flights: list[Flight] = []
        self._events: list[Event] = []  # written, and not handed out yet
        self.spans: list[Span] | None = None  # what ran when, where somebody wants to know

    @property
    def flying(self) -> set[int]:
        """Requests in flight."""
        return {request.id for flight in self._flights for request in flight.group.requests}

    def take(self, groups: list[MethodGroup]) -> tuple[list[MethodGroup], list[MethodGroup]]:
        """(groups of this loop, groups of the other one); requests in flight are in neither."""
        flying = self.flying
        own, others = [], []
        for group in groups:
            if not works_ahead(group):
                others.append(group)
                continue
            waiting = [r for r in group.requests if r.id not in flying]
            plan = drafter_of(group).planner.plan()
            if leaving := [r for r in waiting if not plan.window and r.id not in self._ready]:
                others.append(self._without_window(group, leaving, plan))
            if windows := [r for r in waiting if plan.window or r.id in self._ready]:
                own.append(MethodGroup(group.method, windows, group.drafting))
        return own, others

    def _without_window(self, group: MethodGroup, requests: list[Request], plan: Plan) -> MethodGroup:
        """No window pays: the plain loop does the same with less, by captured rounds where there are some."""
        if not plan.lead:
            for _ in requests:
                drafter_of(group).planner.observe(0, 0)  # so that drafting is tried again some day
        return MethodGroup(group.method, requests, group.drafting and plan.lead > 0, resting=not plan.lead)

    def step(self, groups: list[MethodGroup], alone: bool) -> None:
        """Start these groups, run the target over them, and finish every window whose drafter is done.

        alone: nobody else has work, so that one at least is waited for.
        """
        begun = [self._begin(group) for group in groups]
        if begun:
            self._forward(begun)
            self._flights += begun
        if alone and self._flights and not any(flight.done for flight in self._flights):
            wait([f.ahead for f in self._flights if f.ahead is not None], return_when=FIRST_COMPLETED)
            self.engine.clock.lap("draft", [r for flight in self._flights for r in flight.group.requests])
        for flight in [flight for flight in self._flights if flight.done]:
            self._flights.remove(flight)
            self._finish(flight)

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def forget(self, request: Request) -> None:
        """A request is over."""
        self._ready.pop(request.id, None)

    def _begin(self, group: MethodGroup) -> Flight:
        """Draft what must be there first, then start the drafter on what comes after."""
        drafter, sequences = drafter_of(group), group.sequences
        plan, rooms = drafter.planner.plan(), [self._room(drafter, request) for request in group.requests]
        ready = [self._ready.get(request.id, Branch()) for request in group.requests]
        self._lead(group, ready, [min(plan.lead, room) for room in rooms])
        counts = [
            room_ahead(plan, s.round > 0, len(branch.tokens), room)
            for s, branch, room in zip(sequences, ready, rooms, strict=True)
        ]
        who = [b for b, count in enumerate(counts) if count]
        ahead = None
        if who:
            rng = self.engine.rng([sequences[b] for b in who])
            texts, drafted = [sequences[b] for b in who], [ready[b].tokens for b in who]
            ahead = drafter.submit(texts, drafted, [counts[b] for b in who], rng)
        self.engine.clock.lap("draft", group.requests)
        return Flight(group, ready, who, ahead)

    def _room(self, drafter: AheadDrafter, request: Request) -> int:
        """Drafts that a request may still use; the last token that it writes needs none after it."""
        ends = min(self.engine.executor.max_length, drafter.max_length) - len(request.sequence.tokens)
        return max(0, min(request.sequence.room - 1, ends))

    def _lead(self, group: MethodGroup, ready: list[Branch], counts: list[int]) -> None:
        """Drafts made first where none are ready, with random numbers of their own: the round draws others ahead."""
        drafter = drafter_of(group)
        who = [b for b, count in enumerate(counts) if count and not ready[b].tokens]
        if not who:
            return
        texts = [replace(group.sequences[b], seed=~group.sequences[b].seed) for b in who]
        future = drafter.submit(texts, [()] * len(who), [counts[b] for b in who], self.engine.rng(texts))
        for b, branches in zip(who, future.result(), strict=True):
            ready[b] = branches[0] if branches else Branch()
            self._keep_ready(group.requests[b], ready[b])

    def _keep_ready(self, request: Request, branch: Branch) -> None:
        """For the next window; a request without an entry begins with nothing."""
        if branch.tokens:
            self._ready[request.id] = branch
        else:
            self._ready.pop(request.id, None)

    def _forward(self, flights: list[Flight]) -> None:
        """One pass of the target over what is ready."""
        executor, groups = self.engine.executor, [flight.group for flight in flights]
        for flight in flights:
            flight.group.drafts = move(chains([branch.tokens for branch in flight.ready]), executor.device)
        running = [s for group in groups for s in group.sequences]
        executor.rollback([s.slot for s in running], [len(s.tokens) - 1 for s in running])
        cores = [drafter_of(group).cores.target for group, flight in zip(groups, flights, strict=True) if flight.ahead]
        watch = None if self.spans is None else Watch(executor.device)
        with own_threads(min(cores, default=0)):
            forward_groups(executor, groups)
        if watch is not None:
            watch.stop()
            for flight in flights:
                flight.watch = watch
        self.engine.clock.lap("verify", [request for group in groups for request in group.requests])

    def _finish(self, flight: Flight) -> None:
        """The verdict on a window, and everything that follows from it."""
        group, engine = flight.group, self.engine
        branches = flight.branches()
        engine.clock.lap("draft", group.requests)
        self._add_late(flight, branches)
        check_pair(group.method.rule, group.drafts.kinds, group.drafts.topology)
        if not engine.fast_path.verify(group, engine.case):
            group.verdict = group.method.rule.verify_batch(engine.case(group))
        group.read_back()
        if self.spans is not None and flight.watch is not None:
            drafted = drafter_of(group).span if flight.ahead is not None else None
            self.spans += [flight.watch.span("verify"), *([] if drafted is None else [drafted])]
        engine.clock.lap("verify", group.requests)
        for b, request in enumerate(group.requests):
            if request.finish_reason is None:  # else it was cancelled in flight, and its slot may be somebody else's
                self._settle(flight, branches, b)
        engine.clock.lap("host", group.requests)

    def _add_late(self, flight: Flight, branches: list[list[Branch]]) -> None:
        """The first tokens of the branches as nodes below the ready drafts; their rows are never looked at."""
        group, device = flight.group, self.engine.executor.device
        made = [late_tree(ready.tokens, late) for ready, late in zip(flight.ready, branches, strict=True)]
        drafts = move(trees(made, next(iter(drafter_of(group).kinds))), device)
        if drafts.kind is not Kind.CHOSEN and drafts.width:
            drafts = replace(drafts, distributions=self._drawn_from(flight, branches, drafts))
        group.drafts = drafts
        index = group.out.index
        missing = drafts.width + 1 - index.shape[1]
        if missing > 0:
            index = torch.cat((index, index[:, :1].expand(-1, missing)), dim=1)
        group.out = Output(group.out.logits, group.out.hidden, index)

    def _drawn_from(self, flight: Flight, branches: list[list[Branch]], drafts: DraftBatch) -> Distributions:
        """The distributions that the nodes of chains were drawn from, by the row above them."""
        vocab = self.engine.executor.vocab_size
        masses = PointMasses(drafts.token, vocab)
        if all(request.sequence.params.temperature == 0 for request in flight.group.requests):
            return masses
        table = torch.zeros((drafts.batch, drafts.width + 1, vocab), device=drafts.token.device)
        for b, (ready, late) in enumerate(zip(flight.ready, branches, strict=True)):
            whole = ready.then(late[0].begun()) if late else ready
            count = len(whole.tokens)
            if whole.drawn_from is not None:
                table[b, :count] = whole.drawn_from.to(table.device, table.dtype)
            elif count:
                table[b, torch.arange(count), list(whole.tokens)] = 1.0
        return TableDistributions(table)

    def _settle(self, flight: Flight, branches: list[list[Branch]], b: int) -> None:
        """Commit, learn and hand out, for one request."""
        group, engine = flight.group, self.engine
        request, summary, ready = group.requests[b], group.summaries[b], len(flight.ready[b].tokens)
        path = summary.verdict.path
        drafter_of(group).planner.observe(*count_tests(ready, bool(branches[b]), len(path)))
        summary.verdict, summary.tokens = emitted(ready, summary.verdict, summary.tokens)
        engine.executor.commit([request.sequence.slot], [len(summary.tokens)])  # the ready drafts are a chain
        self._keep_ready(request, next_ready(ready, branches[b], path))
        self._events.append(group.advance(b, engine.executor.max_length))
        if request.finish_reason is not None:
            engine.release(request)


def works_ahead(group: MethodGroup) -> bool:
    return isinstance(group.method.drafter, AheadDrafter)


def drafter_of(group: MethodGroup) -> AheadDrafter:
    return cast(AheadDrafter, group.method.drafter)
