"""The cost of drafting beside the target: the paper's figures, a simulation, and when it does not pay."""

from __future__ import annotations

import random

import pytest

from foredraft.control.overlap import (
    PairTimes,
    Plan,
    WindowPlanner,
    best_plan,
    best_share,
    tokens_per_second,
    tokens_per_window,
)


@pytest.mark.parametrize(("acceptance", "window", "tokens"), [(0.8, 5, 2.2832), (0.5, 4, 1.3043), (0.9, 8, 3.8756)])
def test_tokens_per_window(acceptance: float, window: int, tokens: float) -> None:
    """PEARL's windows, lead 0, by the closed form (1 - a^g) / ((1 - a) (1 + a - a^g))."""
    assert tokens_per_window(acceptance, window) == pytest.approx(tokens, abs=1e-4)


@pytest.mark.parametrize("plan", [Plan(4), Plan(4, 2), Plan(1, 3), Plan(0, 3), Plan(0, 0)])
def test_the_rate_is_that_of_a_simulation(plan: Plan) -> None:
    """Windows played with coins: the same tokens per second."""
    times, flips = PairTimes(1.0, (1, 8), (5.0, 6.0), 1.5, 1.2), random.Random(7)
    seconds, tokens, ready = 0.0, 0, 0
    for _ in range(30_000):
        if not ready:
            seconds += plan.lead * times.draft
            ready = plan.lead
        seconds += times.both(ready + 1, plan.window)
        tests = ready + (plan.window > 0)
        passed = next((i for i in range(tests) if flips.random() >= 0.75), tests)
        tokens += passed + (passed < tests or not plan.window)  # a late token that stands is the window's last one
        ready = plan.window - 1 if plan.window and passed == tests else 0
    assert tokens / seconds == pytest.approx(tokens_per_second(times, 0.75, plan), rel=0.02)


def test_drafting_and_verifying_at_once() -> None:
    times = PairTimes(1.0, (1, 3), (4.0, 6.0), 2.0, 1.5)
    assert times.pass_seconds(2) == 5.0
    assert times.both(1, 0) == 4.0
    assert times.both(1, 3) == 6.0  # both end after 6: the pass takes 4 * 1.5, the drafts 3 * 2
    assert times.both(1, 4) == 7.0  # the last draft's second half runs alone
    assert times.both(3, 3) == 8.0  # after 6 a third of the pass is left, and runs alone


def test_overlap_is_chosen_only_where_it_pays() -> None:
    """Two devices: windows. One core for both: each takes twice as long, and drafting in turn is better."""
    apart = PairTimes(1.0, (1, 16), (5.0, 6.0))
    shared = PairTimes(1.0, (1, 16), (5.0, 6.0), 2.0, 2.0)
    assert best_plan(apart, 0.8).window >= 4
    assert best_plan(shared, 0.8).window == 0 and best_plan(shared, 0.8).lead > 0
    assert best_plan(apart, 0.05) == Plan(2)  # the drafter has nothing else to do
    costly = PairTimes(9.0, (1, 16), (5.0, 6.0), 2.0, 2.0)
    assert best_plan(costly, 0.8) == Plan(0, 0)


def test_the_best_share_of_the_cores() -> None:
    slow, quick = PairTimes(3.0, (1, 16), (5.0, 6.0)), PairTimes(1.0, (1, 16), (5.5, 6.5))
    assert best_share([slow, quick]) == 1 and best_share([quick, slow]) == 0


def test_the_plan_follows_acceptance_and_comes_back() -> None:
    planner = WindowPlanner(PairTimes(2.0, (1, 16), (5.0, 9.0), 1.8, 1.8))
    assert planner.plan().window + planner.plan().lead > 0
    for _ in range(100):
        planner.observe(3, 0)
    assert planner.plan() == Plan(0, 0)
    for _ in range(2000):  # nothing is drafted, and old tests fade
        planner.observe(0, 0)
    assert planner.plan() != Plan(0, 0)
    assert WindowPlanner(fixed=Plan(3, 1), first=1).plan() == Plan(3, 1, 1)


def test_where_both_share_cores_turns_have_all_of_them() -> None:
    """A window pays by the times of the shares, and no longer when drafting in turn may use every core."""
    shared = PairTimes(1.0, (1, 16), (5.0, 6.0))
    assert WindowPlanner(shared).plan().window > 0
    quick = PairTimes(0.3, (1, 16), (2.5, 3.0))
    plan = WindowPlanner(shared, apart=quick).plan()
    assert plan.window == 0 and plan.lead > 0 and plan == WindowPlanner(quick).sequential()
    assert WindowPlanner(shared, apart=PairTimes(3.0, (1, 16), (9.0, 9.0))).plan() == WindowPlanner(shared).plan()
