"""The windowed loop: exact whatever finishes first, and nothing is lost when something fails or is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from foredraft.control.overlap import Plan, WindowPlanner
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES
from foredraft.draft.neural.ahead_drafter import AheadDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import ForedraftError
from foredraft.runtime.lanes import Lane, NoLane, OwnLane
from foredraft.types import Kind
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .lanes import LaggingLane, first_tokens
from .runs import finish, one, request

TARGET = dirichlet(3, seed=1)
NEAR = mixed(TARGET, dirichlet(3, seed=2), 0.5)
NARROW = dirichlet(3, seed=3, support=2)  # two possible tokens at a place keep the enumerations short
TWO = dirichlet(3, seed=5, support=2)
CPU = TableExecutor(TARGET).device


def method(
    plan: Plan, lane: Lane | None = None, model: TableModel = NEAR, kind: Kind = Kind.SAMPLED_WITHOUT_REPLACEMENT,
    rule: str = "residual", slots: int = 1,
) -> Method:  # fmt: skip
    most = max(plan.window, plan.lead)
    drafter = AheadDrafter(
        TableExecutor(model, slots), Chain(most, kind=kind), lane=lane, planner=WindowPlanner(fixed=plan)
    )
    return Method("windowed", RULES[rule], drafter)


def slow_on_even(result: object) -> int:
    return 2 * sum(token % 2 == 0 for token in first_tokens(result))


LANES: dict[str, Callable[[], Lane]] = {
    "at once": NoLane,
    "lagging by content": lambda: LaggingLane(slow_on_even),
    "always last": lambda: LaggingLane(lambda result: 3),
}
PLANS = {"window 1": Plan(1), "window 2": Plan(2), "window 2, lead 1": Plan(2, 1), "in turn": Plan(0, 2)}


CASES = [(plan, "at once", rule) for plan in PLANS for rule in ("residual", "sample-and-match")]
CASES += [("window 2", lane, rule) for lane in list(LANES)[1:] for rule in ("residual", "sample-and-match")]


@pytest.mark.parametrize(("plan", "lane", "rule"), CASES)
def test_texts_follow_the_target(plan: str, lane: str, rule: str) -> None:
    """The next three tokens are distributed as the target says, also where lateness depends on what is drafted."""
    kind = Kind.SAMPLED_WITHOUT_REPLACEMENT if rule == "residual" else Kind.CHOSEN
    distribution = np.zeros((3,) * 3)

    def run(rng: EnumeratingRng) -> list[int]:
        own = method(PLANS[plan], LANES[lane](), NARROW, kind, rule)
        return one(TableExecutor(TWO), own, 3, rng, temperature=1.0)

    for weight, text in outcomes(run):
        distribution[tuple(text)] += weight
    assert np.abs(distribution - TWO.joint(3, (0, 1))).max() < 1e-6


@dataclass
class ChangingPlanner(WindowPlanner):
    """Another plan after every round."""

    plans: list[Plan] = field(default_factory=list)
    rounds: int = 0

    def plan(self) -> Plan:
        return self.plans[self.rounds % len(self.plans)]

    def sequential(self) -> Plan:
        return self.plan()

    def observe(self, tests: int, passed: int) -> None:
        self.rounds += 1


CHANGES = {
    "into turns": [Plan(2), Plan(0, 2)],
    "into windows": [Plan(0, 2), Plan(2), Plan(2, 1)],
    "resting": [Plan(3), Plan(0), Plan(0, 1), Plan(0), Plan(2)],
}


def changing(plans: list[Plan], lane: Lane, kind: Kind, rule: str, model: TableModel = NARROW) -> Method:
    own = method(Plan(3), lane, model, kind, rule)
    own.drafter.planner = ChangingPlanner(plans=plans)  # type: ignore[union-attr]
    return own


@pytest.mark.parametrize("rule", ["residual", "sample-and-match"])
@pytest.mark.parametrize("plans", CHANGES)
def test_texts_follow_the_target_while_plans_change(plans: str, rule: str) -> None:
    """Windows, drafting in turn in the plain loop, and no drafts, one after the other in one text."""
    kind = Kind.SAMPLED_WITHOUT_REPLACEMENT if rule == "residual" else Kind.CHOSEN
    distribution = np.zeros((3,) * 3)

    def run(rng: EnumeratingRng) -> list[int]:
        lane = LaggingLane(slow_on_even)
        return one(TableExecutor(TWO), changing(CHANGES[plans], lane, kind, rule), 3, rng, temperature=1.0)

    for weight, text in outcomes(run):
        distribution[tuple(text)] += weight
    assert np.abs(distribution - TWO.joint(3, (0, 1))).max() < 1e-6


@pytest.mark.parametrize("plans", CHANGES)
@pytest.mark.parametrize("make", [NoLane, partial(OwnLane, CPU, 1)])
def test_greedy_text_while_plans_change(plans: str, make: Callable[[], Lane]) -> None:
    own = changing(CHANGES[plans], make(), Kind.CHOSEN, "sample-and-match", NEAR)
    assert one(TableExecutor(TARGET), own, 24) == greedy(24)


class NoJobs:
    """A lane that takes no drafting."""

    def submit(self, job):  # type: ignore[no-untyped-def]
        future = NoLane().submit(job)
        assert future.result() is None, "drafted in the lane"
        return future


@pytest.mark.parametrize(("plan", "steps"), [(Plan(0, 3), 11), (Plan(0), 41)])
def test_without_a_window_the_plain_loop_does_it(plan: Plan, steps: int) -> None:
    """In turn three tokens stand in every round and one follows; without drafts the drafter is not asked at all."""
    own = method(Plan(0, 3), NoJobs(), TARGET, Kind.CHOSEN, "sample-and-match")
    own.drafter.planner = WindowPlanner(fixed=plan)  # type: ignore[union-attr]
    engine, asked = Engine(TableExecutor(TARGET)), request((0, 1), own, max_new_tokens=41)
    assert finish(engine, asked) == [greedy(41)]
    assert asked.stats.steps == steps and (asked.stats.drafted > 0) is (plan.lead > 0)


def test_two_requests_are_independent() -> None:
    """Both texts of two drafters, jointly, while a third request that does not draft keeps the loop from waiting."""
    distribution = np.zeros((3,) * 4)

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        engine = Engine(TableExecutor(TWO, 3), lambda sequences: rng)
        plain = Method("plain", RULES["sample-and-match"])
        own = [method(Plan(2), LaggingLane(lag), NARROW) for lag in (slow_on_even, lambda result: 1)]
        texts = [request((0, 1), own[i], i, max_new_tokens=2, temperature=1.0) for i in range(2)]
        other = request((0, 1), plain, 9, max_new_tokens=5)
        outputs = finish(engine, *texts, other)
        assert outputs[2] == greedy(5, TWO)
        return tuple(outputs[0] + outputs[1])

    for weight, text in outcomes(run):
        distribution[text] += weight
    alone = TWO.joint(2, (0, 1))
    assert np.abs(distribution - np.multiply.outer(alone, alone)).max() < 1e-6


def greedy(tokens: int, target: TableModel = TARGET) -> list[int]:
    text = [0, 1]
    for _ in range(tokens):
        text.append(int(target.next_distribution(text).argmax()))
    return text[2:]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("make", [NoLane, partial(OwnLane, CPU, 1), lambda: LaggingLane(slow_on_even)])
def test_greedy_is_the_limit(plan: str, make: Callable[[], Lane]) -> None:
    assert one(TableExecutor(TARGET), method(PLANS[plan], make()), 20) == greedy(20)


def test_a_drafter_that_is_the_target_is_never_wrong() -> None:
    """Nothing is drafted twice, and nothing is drawn after a window that stands: a pass of w rows writes w tokens."""
    engine = Engine(TableExecutor(TARGET))
    asked = request((0, 1), method(Plan(4), model=TARGET), max_new_tokens=41)
    assert finish(engine, asked) == [greedy(41)]
    assert asked.stats.steps == 11  # one token, then four a window
    assert asked.stats.accepted == asked.stats.drafted == 40  # the last token needs no draft


def test_seeds_give_the_same_text_in_a_batch() -> None:
    def texts(slots: int, count: int) -> list[list[int]]:
        own = method(Plan(3, 1), OwnLane(CPU, 1), slots=slots)
        asked = [request((0, 1), own, i, max_new_tokens=12, temperature=1.0, seed=i) for i in range(count)]
        return finish(Engine(TableExecutor(TARGET, slots)), *asked)

    assert texts(4, 6) == texts(1, 6)


@dataclass
class FailingLane:
    """Fails some of its drafting jobs, before or after they have run."""

    fail: Callable[[int], str]
    jobs: int = 0
    inner: NoLane = field(default_factory=NoLane)

    def submit(self, job):  # type: ignore[no-untyped-def]
        self.jobs += 1
        how = self.fail(self.jobs)

        def run():  # type: ignore[no-untyped-def]
            if how == "before":
                raise ForedraftError("lost")
            result = job()
            if how == "after" and first_tokens(result):
                raise ForedraftError("lost")
            return result

        return self.inner.submit(run)


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_failure_in_flight_loses_nothing(how: str, temperature: float) -> None:
    """A job that fails ends the step; the next step goes on as if nothing had happened."""
    texts = []
    for fail in (lambda job: "", lambda job: how if job % 3 == 0 else ""):
        engine = Engine(TableExecutor(TARGET))
        asked = request((0, 1), method(Plan(3), FailingLane(fail)), max_new_tokens=20, temperature=temperature, seed=3)
        engine.add(asked)
        failures = 0
        while not engine.scheduler.idle:
            try:
                engine.step()
            except ForedraftError:
                failures += 1
        texts.append(asked.sequence.output)
    assert failures > 2 and texts[0] == texts[1]


def test_cancelling_in_flight_leaves_the_others_alone() -> None:
    """The slot of a request that was cancelled in flight goes to another one, which writes its own text."""
    engine = Engine(TableExecutor(TARGET, 2))
    own = method(Plan(3), LaggingLane(lambda result: 2 if first_tokens(result) else 0), slots=2)
    plain = Method("plain", RULES["sample-and-match"])
    first, second, third = (request((0, 1), own, i, max_new_tokens=15) for i in range(3))
    busy = request((0, 1), plain, 9, max_new_tokens=40)
    for each in (busy, first):
        engine.add(each)
    engine.step()
    assert first.sequence.output == []  # in flight
    engine.cancel(first)
    finish(engine, second, third)
    assert first.finish_reason == "cancelled" and first.sequence.output == []
    assert second.sequence.output == third.sequence.output == greedy(15)
    assert busy.sequence.output == greedy(40)


def test_a_lagging_drafter_holds_nobody_else() -> None:
    engine = Engine(TableExecutor(TARGET, 2))
    slow = request((0, 1), method(Plan(3), LaggingLane(lambda result: 4)), 0, max_new_tokens=8)
    quick = request((0, 1), method(Plan(3), NoLane()), 1, max_new_tokens=8)
    engine.add(slow)
    engine.add(quick)
    done = []
    while not engine.scheduler.idle:
        done += [event.request_id for event in engine.step() if event.finish_reason]
    assert done == [1, 0] and slow.sequence.output == quick.sequence.output == greedy(8)


def test_one_token_and_the_end_of_the_context() -> None:
    assert one(TableExecutor(TARGET), method(Plan(3)), 1) == greedy(1)
    assert one(TableExecutor(TARGET, max_length=9), method(Plan(3)), 30) == greedy(7)


def test_logprobs_are_those_of_the_rows_that_wrote_the_tokens() -> None:
    asked = request((0, 1), method(Plan(3)), max_new_tokens=12, logprobs=0)
    assert finish(Engine(TableExecutor(TARGET)), asked) == [greedy(12)]
    text = [0, 1]
    for token, entry in zip(asked.sequence.output, asked.logprobs, strict=True):
        assert entry[token] == pytest.approx(float(np.log(TARGET.next_distribution(text)[token])), abs=1e-5)
        text.append(token)
