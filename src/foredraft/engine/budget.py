"""How the requests of a batch share the verification pass: the more of them there are, the less each may draft.

Before drafting, every request gets the depth that makes the whole batch fastest by past acceptance and the cost model;
a drafter that would not pay is not even asked. Some drafters know more of their drafts once they are there: these may
draft a little more than fits, and TETRIS keeps the best of it. A request that runs alone keeps its budget, and so do
those of cost-aware drafters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import ceil
from statistics import median_low

from ..control.acceptance import AcceptanceRecord
from ..control.constants import (
    ACCEPTANCE_PRIOR,
    EMA_RATE,
    EXTRA_LEVELS,
    HOLD,
    HOST_SHARE,
    PLAN_CHANGE,
    PLANNER_RETRY,
    TIME_EVERY,
)
from ..control.cost import CostModel, Costs, DraftTiming
from ..control.depth_allocation import Candidate, best_depths
from ..control.throughput_probe import ThroughputProbe
from ..core.trees.tetris import Score, can_cut, cut_to
from ..draft import Drafter
from ..draft.base import depths_of
from ..errors import UsageError
from ..types import Budget, Kind, Topology
from ..types.drafts import NO_BUDGET
from .method_group import MethodGroup
from .request import Request


@dataclass(slots=True)
class DrafterHistory(DraftTiming):
    """What is known of a drafter."""

    deepest: int = 0  # most levels that it has drafted
    valued: bool = False  # whether its drafts come with values
    idle: int = 0  # steps since it was asked last


@dataclass(slots=True)
class HostTime:
    """Seconds of a step that are neither drafting nor the pass."""

    seconds: float = 0.0  # an EMA
    accounted: float = 0.0  # seconds of this step's drafting, pass and reading of prompts ...
    timed: bool = False  # ... and whether its pass was timed
    began: float | None = None
    who: list[int] = field(default_factory=list)  # requests that write ...
    tokens: int = 0  # ... and the tokens of them all when the step began

    def step(self, now: float, writing: Seq[Request]) -> int:
        """A step begins; returns what the last one wrote, 0 where other requests wrote it or it was not timed."""
        who = [request.sequence.id for request in writing]
        tokens = sum([len(request.sequence.tokens) for request in writing])
        comparable = self.timed and who == self.who
        if self.began is not None and comparable:
            self.seconds += EMA_RATE * (now - self.began - self.accounted - self.seconds)
        wrote = tokens - self.tokens if comparable else 0
        self.began, self.accounted, self.timed, self.who, self.tokens = now, 0.0, False, who, tokens
        return wrote

    @property
    def context(self) -> float:
        """Tokens of a sequence."""
        return self.tokens / max(1, len(self.who))

    def passed(self, seconds: float) -> None:
        self.accounted, self.timed = self.accounted + seconds, seconds > 0


class BudgetPlanner:
    """Shares the pass among requests. Learns from every step what drafts are worth and what they cost."""

    def __init__(
        self, costs: CostModel, score: Score = Score.SHIFTED, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.costs, self.score, self._clock = Costs(costs), score, clock
        self._probe, self._host = ThroughputProbe(), HostTime()
        self.record = AcceptanceRecord()
        self._drafters: dict[str, DrafterHistory] = {}
        self._plan: dict[int, int] = {}  # request -> levels that pay
        self._usual: dict[str, int] = {}  # drafter -> levels that pay for most of its requests
        self._age, self._batch = 0, 0  # of the plan
        self._fits: dict[int, int] = {}  # request -> levels of this step
        self._even = False
        self._untimed = 0  # steps since one was timed

    def check(self, request: Request) -> None:
        """Refuse a request whose distribution the published score would change."""
        drafter = request.method.drafter
        drawn = drafter is not None and drafter.kinds != frozenset({Kind.CHOSEN})
        if self.score is Score.PUBLISHED and drawn and request.sequence.params.temperature > 0:
            raise UsageError("the published TETRIS score is biased at temperature > 0; use the score 'shifted'")

    # --- before drafting ----------------------------------------------------------------------------------------------

    def plan(self, writing: Seq[Request], even: bool = False) -> None:
        """Lower the draft budgets of requests that are verified together; even: see `Executor`."""
        self._even = even
        planned = [request for request in writing if request.sequence.budget.chain and self._is_planned(request)]
        for name in {_name(request) for request in planned}:
            self._drafters[name].idle += 1
        self._fits = {}
        now = self._clock()
        wrote = self._host.step(now, writing)
        probes = len(writing) > 1 and bool(planned) and self._host_is_slow(writing)
        if not probes:
            self._probe.last = None
        if len(writing) < 2 or not planned:
            return
        if probes and self._probe.rests(now, wrote):
            for request in planned:
                request.sequence.budget = NO_BUDGET
            return
        self._age += 1
        if self._is_old(planned, len(writing)):
            self._revise(planned, writing)
        self._set_budgets(planned)

    def _is_old(self, planned: Seq[Request], batch: int) -> bool:
        """Whether depths must be computed again. In a large batch some request comes or goes at every step."""
        changed = PLAN_CHANGE * abs(batch - self._batch) > self._batch
        return self._age >= HOLD or changed or any(_name(request) not in self._usual for request in planned)

    def _set_budgets(self, planned: Seq[Request]) -> None:
        """Budgets by the plan; most requests of a batch are alike, so few are computed."""
        known: dict[tuple[object, ...], Budget] = {}
        for request in planned:
            drafter, sequence = request.method.drafter, request.sequence
            assert drafter is not None
            history = self._drafters[drafter.name]
            depth = self._plan.get(sequence.id, self._usual[drafter.name]) or int(history.idle >= PLANNER_RETRY)
            alike = (id(drafter), sequence.budget, depth, sequence.params.temperature > 0)
            if alike not in known:
                known[alike] = self._budget(request, history, depth)
            self._fits[sequence.id], sequence.budget = depth, known[alike]

    def _host_is_slow(self, writing: Seq[Request]) -> bool:
        """Whether the host's own work takes so much of a step that the clock must say whether drafting pays."""
        return self._host.seconds > HOST_SHARE * self.costs.seconds(1, self._host.context, len(writing))

    def _is_planned(self, request: Request) -> bool:
        """Only a drafter that has drafted before can be planned."""
        drafter = request.method.drafter
        if drafter is None or drafter.name not in self._drafters or drafter.cost_aware:
            return False
        return self._drafters[drafter.name].rounds > 0

    def _revise(self, planned: Seq[Request], writing: Seq[Request]) -> None:
        batch, context = len(writing), self._host.context
        timings = {name: self._drafters[name] for name in map(_name, planned)}
        found = best_depths(
            [self._candidate(request) for request in planned],
            batch,
            lambda rows: self.costs.seconds(1 + rows / batch, context, batch),
            timings,
            self._even,
        )
        self._plan = {request.id: depth for request, depth in zip(planned, found.depths, strict=True)}
        of_drafter = {name: [self._plan[r.id] for r in planned if _name(r) == name] for name in timings}
        self._usual = {name: median_low(depths) for name, depths in of_drafter.items()}
        self._age, self._batch = 0, batch

    def _candidate(self, request: Request) -> Candidate:
        name = _name(request)
        history = self._drafters[name]
        chain = request.method.drafter is not None and request.method.drafter.topology is Topology.CHAIN
        levels = request.sequence.budget.chain if chain else min(request.sequence.budget.depth, history.deepest)
        return Candidate(self.record.gains(request.id, name, levels, ACCEPTANCE_PRIOR), name, history.level_nodes)

    def _budget(self, request: Request, history: DrafterHistory, depth: int) -> Budget:
        allowed, drafter = request.sequence.budget, request.method.drafter
        assert drafter is not None
        if depth == 0:
            return Budget(0, 0)
        levels = depth + (EXTRA_LEVELS if self._selects(request, drafter, history) else 0)
        return Budget(min(allowed.nodes, ceil(levels * history.level_nodes)), min(allowed.depth, levels))

    def _selects(self, request: Request, drafter: Drafter, history: DrafterHistory) -> bool:
        """Whether drafts come with values to select by. At temperature 0 a drawn chain's distributions are one-hot."""
        drawn_chain = drafter.topology is Topology.CHAIN and drafter.kinds != frozenset({Kind.CHOSEN})
        return request.sequence.params.temperature > 0 if drawn_chain else history.valued

    def wants_time(self, groups: Seq[MethodGroup]) -> bool:
        """Whether a step must be timed, which a device cannot run ahead of: where drafts are shared out; else now and
        then, so that the cost of a plain pass stays known."""
        shared = any(group.drafting and not _drafter(group.requests[0]).cost_aware for group in groups)
        self._untimed = 0 if shared else (self._untimed + 1) % TIME_EVERY
        return self._untimed == 0

    @property
    def due(self) -> bool:
        """Whether the next step is timed in any case: to begin it early would be in vain."""
        return self._untimed == TIME_EVERY - 1

    # --- after drafting -----------------------------------------------------------------------------------------------

    def select(self, groups: Seq[MethodGroup]) -> None:
        """Keep the best of what was drafted beyond the plan."""
        for group in groups:
            if not group.drafting or not can_cut(group.drafts, group.method.rule):
                continue
            if any(request.id not in self._fits for request in group.requests):
                continue
            rows = self._drafters[_name(group.requests[0])].level_nodes
            capacity = ceil(sum(self._fits[request.id] for request in group.requests) * rows)
            before = group.drafts.lengths()
            group.drafts = cut_to(group.drafts, capacity, self.score)
            for request, had, has in zip(group.requests, before, group.drafts.lengths(), strict=True):
                request.stats.cut += had - has

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def read(self, seconds: float) -> None:
        """Reading prompts took so long."""
        self._host.accounted += seconds

    def drafted(self, drafter: Drafter, groups: Seq[MethodGroup], seconds: float) -> None:
        """A drafter took so long for the drafts of these groups."""
        history = self._drafters.setdefault(drafter.name, DrafterHistory())
        history.idle = 0
        self._host.accounted += seconds
        depths = [depth for group in groups for depth in depths_of(group.drafts) if depth]
        if depths:
            nodes = sum(sum(group.drafts.lengths()) for group in groups)
            history.follow(seconds, nodes / len(depths), sum(depths) / len(depths), max(depths))
            history.deepest = max(history.deepest, *depths)
            history.valued = any(group.drafts.value is not None for group in groups)

    def observe(self, groups: Seq[MethodGroup], seconds: float) -> None:
        """A step's pass took so long (0 = unknown), and these are its verdicts."""
        batch = sum(len(group.requests) for group in groups)
        self._host.passed(seconds)
        if not batch:
            return
        lengths = [length for group in groups for length in group.drafts.lengths()]
        rows = batch + (batch * max(lengths) if self._even else sum(lengths))
        self.costs.observe(rows / batch, self._host.context, batch, seconds)
        for group in groups:
            if group.drafting and group.method.drafter is not None:
                for request, given in zip(group.requests, group.summaries, strict=True):
                    name, accepted = group.method.drafter.name, len(given.verdict.path)
                    self.record.observe(request.id, name, given.depth, accepted)

    def end(self, request: Request) -> None:
        self.record.end(request.id)


def _drafter(request: Request) -> Drafter:
    assert request.method.drafter is not None
    return request.method.drafter


def _name(request: Request) -> str:
    return _drafter(request).name
