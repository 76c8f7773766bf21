"""How the requests of a batch share the verification pass: the more of them there are, the less each may draft.

Before drafting, every request gets the depth that makes the whole batch fastest, as far as past acceptance and the cost
model can tell; a drafter that would not pay is not even asked. Some drafters know more of their drafts once they are
there: these may draft a little more than fits, and TETRIS keeps the best of it. A request that runs alone is left in
peace, and so are drafters that weigh costs themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import ceil
from statistics import median_low

from ..control.acceptance import Record
from ..control.cost import CostModel, LiveCosts
from ..control.depth_allocation import Wish, best_depths
from ..control.draft_timing import DraftTiming
from ..control.throughput_probe import DEAR, ThroughputProbe
from ..core.trees.tetris import Score, can_cut, cut_to
from ..draft import Drafter
from ..draft.combine.length_control import depths_of
from ..errors import UsageError
from ..types import Budget, Kind, Topology
from ..types.drafts import NO_BUDGET
from .method_group import MethodGroup
from .request import Request

PRIOR = 0.6  # chance of a drafted token before anything is known
EXTRA = 1  # levels that are drafted beyond what fits, where the best can be told afterwards
PROBE = 64  # steps after which a drafter that does not seem to pay is tried again
PACE = 0.2  # at which the host's share of a step is followed
REVISE = 8  # steps for which depths hold ...
CHANGE = 8  # ... unless more than one in so many comes or goes


@dataclass(slots=True)
class Known(DraftTiming):
    """What is known of a drafter."""

    deepest: int = 0  # most levels that it has drafted
    valued: bool = False  # whether its drafts come with values
    idle: int = 0  # steps since it was asked last


@dataclass(slots=True)
class Watch:
    """What steps take besides drafting and passes."""

    host: float = 0.0  # seconds of a step, followed
    known: float = 0.0  # seconds of this step's drafting, pass and reading of prompts ...
    timed: bool = False  # ... and whether its pass tells anything
    began: float | None = None
    who: list[int] = field(default_factory=list)  # requests that write ...
    tokens: int = 0  # ... and what they all had when the step began

    def step(self, now: float, writing: Seq[Request]) -> int:
        """A step begins; returns what the last one wrote, 0 where others wrote it or something was recorded."""
        who = [request.sequence.id for request in writing]
        tokens = sum([len(request.sequence.tokens) for request in writing])
        usual = self.timed and who == self.who
        if self.began is not None and usual:
            self.host += PACE * (now - self.began - self.known - self.host)
        wrote = tokens - self.tokens if usual else 0
        self.began, self.known, self.timed, self.who, self.tokens = now, 0.0, False, who, tokens
        return wrote

    @property
    def context(self) -> float:
        """Tokens of a sequence."""
        return self.tokens / max(1, len(self.who))

    def passed(self, seconds: float) -> None:
        self.known, self.timed = self.known + seconds, seconds > 0


class BudgetPlanner:
    """Shares out the pass among requests. Learns from every step what drafts are worth and what they cost."""

    def __init__(
        self, costs: CostModel, score: Score = Score.SHIFTED, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.costs, self.score, self._clock = LiveCosts(costs), score, clock
        self._pulse, self._watch = ThroughputProbe(), Watch()
        self.record = Record()
        self._timings: dict[str, Known] = {}
        self._plan: dict[int, int] = {}  # request -> levels that pay
        self._usual: dict[str, int] = {}  # drafter -> levels that pay for most of its requests
        self._age, self._batch = 0, 0  # of the plan
        self._fits: dict[int, int] = {}  # request -> levels of this step
        self._even = False

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
            self._timings[name].idle += 1
        self._fits = {}
        now = self._clock()
        wrote = self._watch.step(now, writing)
        asks = len(writing) > 1 and bool(planned) and self._is_dear(writing)
        if not asks:
            self._pulse.last = None
        if len(writing) < 2 or not planned:
            return
        if asks and self._pulse.rests(now, wrote):
            for request in planned:
                request.sequence.budget = NO_BUDGET
            return
        self._age += 1
        if self._is_old(planned, len(writing)):
            self._revise(planned, writing)
        self._share_out(planned)

    def _is_old(self, planned: Seq[Request], batch: int) -> bool:
        """Whether depths must be worked out anew. Of a large batch somebody comes or goes at every step."""
        changed = CHANGE * abs(batch - self._batch) > self._batch
        return self._age >= REVISE or changed or any(_name(request) not in self._usual for request in planned)

    def _share_out(self, planned: Seq[Request]) -> None:
        """Everyone's budget by the plan; most requests of a batch are alike, so few are worked out."""
        made: dict[tuple[object, ...], Budget] = {}
        for request in planned:
            drafter, sequence = request.method.drafter, request.sequence
            assert drafter is not None
            timing = self._timings[drafter.name]
            depth = self._plan.get(sequence.id, self._usual[drafter.name]) or int(timing.idle >= PROBE)
            alike = (id(drafter), sequence.budget, depth, sequence.params.temperature > 0)
            if alike not in made:
                made[alike] = self._budget(request, timing, depth)
            self._fits[sequence.id], sequence.budget = depth, made[alike]

    def _is_dear(self, writing: Seq[Request]) -> bool:
        """Whether the host's own work takes so much of a step that the clock must say what drafting brings."""
        return self._watch.host > DEAR * self.costs.seconds(1, self._watch.context, len(writing))

    def _is_planned(self, request: Request) -> bool:
        """Only what is known to the record can be planned: the first draft of a drafter is free."""
        drafter = request.method.drafter
        if drafter is None or drafter.name not in self._timings or drafter.cost_aware:
            return False
        return self._timings[drafter.name].rounds > 0

    def _revise(self, planned: Seq[Request], writing: Seq[Request]) -> None:
        batch, context = len(writing), self._watch.context
        level_seconds = {name: self._timings[name].level_seconds for name in map(_name, planned)}
        found = best_depths(
            [self._wish(request) for request in planned],
            batch,
            lambda rows: self.costs.seconds(1 + rows / batch, context, batch),
            level_seconds,
            self._even,
        )
        self._plan = {request.id: depth for request, depth in zip(planned, found.depths, strict=True)}
        of_drafter = {name: [self._plan[r.id] for r in planned if _name(r) == name] for name in level_seconds}
        self._usual = {name: median_low(depths) for name, depths in of_drafter.items()}
        self._age, self._batch = 0, batch

    def _wish(self, request: Request) -> Wish:
        name = _name(request)
        timing = self._timings[name]
        chain = request.method.drafter is not None and request.method.drafter.topology is Topology.CHAIN
        levels = request.sequence.budget.chain if chain else min(request.sequence.budget.depth, timing.deepest)
        return Wish(self.record.gains(request.id, name, levels, PRIOR), name, timing.level_nodes)

    def _budget(self, request: Request, timing: Known, depth: int) -> Budget:
        allowed, drafter = request.sequence.budget, request.method.drafter
        assert drafter is not None
        if depth == 0:
            return Budget(0, 0)
        extra = EXTRA if self._can_tell(request, drafter, timing) else 0
        return Budget(min(allowed.nodes, ceil((depth + extra) * timing.level_nodes)), min(allowed.depth, depth + extra))

    def _can_tell(self, request: Request, drafter: Drafter, timing: Known) -> bool:
        """Whether drafts will say how good they are. At temperature 0 a drawn chain's distributions are sure of everything."""
        drawn_chain = drafter.topology is Topology.CHAIN and drafter.kinds != frozenset({Kind.CHOSEN})
        return request.sequence.params.temperature > 0 if drawn_chain else timing.valued

    # --- after drafting -----------------------------------------------------------------------------------------------

    def select(self, groups: Seq[MethodGroup]) -> None:
        """Keep the best of what was drafted beyond the plan."""
        for group in groups:
            if not group.drafting or not can_cut(group.drafts, group.method.rule):
                continue
            if any(request.id not in self._fits for request in group.requests):
                continue
            rows = self._timings[_name(group.requests[0])].level_nodes
            capacity = ceil(sum(self._fits[request.id] for request in group.requests) * rows)
            before = group.drafts.lengths()
            group.drafts = cut_to(group.drafts, capacity, self.score)
            for request, had, has in zip(group.requests, before, group.drafts.lengths(), strict=True):
                request.stats.cut += had - has

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def read(self, seconds: float) -> None:
        """Reading prompts has taken so long."""
        self._watch.known += seconds

    def drafted(self, drafter: Drafter, groups: Seq[MethodGroup], seconds: float) -> None:
        """A drafter has taken so long for the drafts of these groups."""
        timing = self._timings.setdefault(drafter.name, Known())
        timing.idle = 0
        self._watch.known += seconds
        depths = [depth for group in groups for depth in depths_of(group.drafts) if depth]
        if depths:
            nodes = sum(sum(group.drafts.lengths()) for group in groups)
            timing.follow(seconds / max(depths), nodes / len(depths), sum(depths) / len(depths))
            timing.deepest = max(timing.deepest, *depths)
            timing.valued = any(group.drafts.value is not None for group in groups)

    def observe(self, groups: Seq[MethodGroup], seconds: float) -> None:
        """A step's pass has taken so long (0 = nobody can tell), and these are its verdicts."""
        batch = sum(len(group.requests) for group in groups)
        self._watch.passed(seconds)
        if not batch:
            return
        lengths = [length for group in groups for length in group.drafts.lengths()]
        rows = batch + (batch * max(lengths) if self._even else sum(lengths))
        self.costs.observe(rows / batch, self._watch.context, batch, seconds)
        for group in groups:
            if group.drafting and group.method.drafter is not None:
                for request, told in zip(group.requests, group.summaries, strict=True):
                    name, accepted = group.method.drafter.name, len(told.verdict.path)
                    self.record.observe(request.id, name, told.depth, accepted)

    def end(self, request: Request) -> None:
        self.record.end(request.id)


def _name(request: Request) -> str:
    assert request.method.drafter is not None
    return request.method.drafter.name
