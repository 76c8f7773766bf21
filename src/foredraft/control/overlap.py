"""What it brings to draft while the target verifies: expected tokens per second, and the window that gives most.

A window: the target reads the drafts that are ready while the drafter drafts `window` tokens after them. If all of
those and the first new token stand, the other new ones are ready for the next window; otherwise nothing is ready, and
the drafter may first draft `lead` tokens while the target waits (0 as in PEARL). With acceptance a, windows are a chain
of two states, and from one loss of everything to the next

    tokens = 1 / (1 - a),     windows = 1 + a^(lead + 1) / (1 - a^window).

`window = 0` is drafting in turn, `window = lead = 0` plain decoding: the same function rates them, so that overlap is
chosen only where it pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from .acceptance import FadingCounts

PRIOR, WEIGHT = 0.7, 8.0  # acceptance before any was seen, and for how many tests it counts
FADE = 0.98  # of earlier windows
MOST = 24  # tokens of a window, and of a lead
STEPS = 50  # acceptance is rounded to 1 / STEPS, so that plans are looked up


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Seconds of a drafter and a target, each alone, and how much longer each takes beside the other."""

    draft: float  # one more drafted token
    rows: tuple[int, ...]  # new rows of a target pass ..
    verify: tuple[float, ...]  # .. and its seconds
    draft_beside: float = 1.0  # times longer while the target runs
    verify_beside: float = 1.0  # times longer while the drafter runs

    def pass_seconds(self, rows: int) -> float:
        """A target pass over so many new rows, linear between the points."""
        points = list(zip(self.rows, self.verify, strict=True))
        for (r0, s0), (r1, s1) in pairwise(points):
            if rows <= r1:
                return s0 + (s1 - s0) * max(0, rows - r0) / (r1 - r0)
        return self.verify[-1] * max(1.0, rows / self.rows[-1])

    def both(self, rows: int, drafts: int) -> float:
        """A pass and so many drafted tokens at the same time: slowed down together, the longer one ends alone."""
        verify, draft = self.pass_seconds(rows) * self.verify_beside, drafts * self.draft * self.draft_beside
        if not drafts:
            return self.pass_seconds(rows)
        if verify <= draft:
            return verify + (draft - verify) / self.draft_beside
        return draft + (verify - draft) / self.verify_beside


@dataclass(frozen=True, slots=True)
class Plan:
    """How the next windows go."""

    window: int  # tokens to draft while the target verifies; 0 = none
    lead: int = 0  # tokens to draft before, where nothing is ready
    first: int = 0  # tokens of a request's first window, so that its first token does not wait; 0 = as all others


def tokens_per_window(acceptance: float, window: int, lead: int = 0) -> float:
    """Expected tokens of a window."""
    written, visits = _cycle(acceptance, Plan(window, lead))
    return written / (1 + visits)


def tokens_per_second(times: PairTimes, acceptance: float, plan: Plan) -> float:
    """Expected rate of a plan."""
    written, visits = _cycle(acceptance, plan)
    after_loss = plan.lead * times.draft + times.both(plan.lead + 1, plan.window)
    return written / (after_loss + visits * times.both(max(1, plan.window), plan.window))


def _cycle(acceptance: float, plan: Plan) -> tuple[float, float]:
    """Tokens from one loss to the next, and the windows in between that begin with drafts ready."""
    a = min(max(acceptance, 0.0), 0.999)
    first = _series(a, plan.lead + 1)
    if plan.window <= 1:  # after a window of one token nothing is ready either
        return first, 0.0
    visits = a ** (plan.lead + 1) / (1 - a**plan.window)
    return first + visits * _series(a, plan.window), visits


def _series(a: float, count: int) -> float:
    """1 + a + .. + a^(count - 1): tests passed, and one token for the test that fails or comes last."""
    return float((1 - a**count) / (1 - a))


@lru_cache(maxsize=1024)
def best_plan(times: PairTimes, acceptance: float, most: int = MOST, overlap: bool = True) -> Plan:
    """The plan with the highest expected rate; of equal ones the shortest. overlap: whether windows may be used."""
    windows = range(most + 1) if overlap else range(1)
    plans = (Plan(window, lead) for window in windows for lead in range(most + 1))
    return max(plans, key=lambda plan: tokens_per_second(times, acceptance, plan))


def best_share(by_threads: Sequence[PairTimes], acceptance: float = PRIOR) -> int:
    """Which way of sharing out the cores of a CPU gives the highest rate."""
    rates = [tokens_per_second(times, acceptance, best_plan(times, acceptance)) for times in by_threads]
    return rates.index(max(rates))


@dataclass(slots=True)
class WindowPlanner:
    """The plan for the next window, by what was accepted so far; a fixed one where it was asked for."""

    times: PairTimes | None = None  # None = the plan is fixed
    apart: PairTimes | None = None  # where each has all cores while the other waits: for plans without a window
    fixed: Plan = field(default_factory=lambda: Plan(4))
    most: int = MOST
    first: int = 0  # of every plan
    accepted: FadingCounts = field(default_factory=lambda: FadingCounts(FADE))

    def plan(self) -> Plan:
        if self.times is None:
            return replace(self.fixed, first=self.first)
        plan, one_by_one = best_plan(self.times, self._rounded, self.most), self.sequential()
        if self.apart is not None and self._rate(self.times, plan) <= self._rate(self.apart, one_by_one):
            plan = one_by_one
        return replace(plan, first=self.first)

    def sequential(self) -> Plan:
        """The best plan without a window; of a fixed one the longest that it drafts at a time."""
        if self.times is None:
            return Plan(0, self.fixed.lead or self.fixed.window)
        return best_plan(self.apart or self.times, self._rounded, self.most, overlap=False)

    def _rate(self, times: PairTimes, plan: Plan) -> float:
        return tokens_per_second(times, self._rounded, plan)

    @property
    def _rounded(self) -> float:
        return round(self.acceptance * STEPS) / STEPS

    @property
    def acceptance(self) -> float:
        return self.accepted.mean(PRIOR, WEIGHT)

    def observe(self, tests: int, passed: int) -> None:
        """So many drafted tokens of a window were tested. Where none are, old ones fade: it is tried again some day."""
        self.accepted.add(passed, tests)
