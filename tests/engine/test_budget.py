"""Drafts that share a pass: depths fall as the batch grows, the best drafts are kept, and no distribution changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from foredraft.control.constants import PLANNER_RETRY, TIME_EVERY, TRY_EVERY
from foredraft.control.cost import CostModel
from foredraft.core.rng.enumerating import outcomes
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain, StaticTree
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.trees.tetris import Score
from foredraft.core.verify import RULES, check_pair, default_rule
from foredraft.draft.combine.auto import Arm, AutoDrafter
from foredraft.draft.combine.guarded import GuardedDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import BudgetPlanner, Engine, Method, Request, Sharing
from foredraft.engine.method_group import MethodGroup
from foredraft.errors import UsageError
from foredraft.types import Kind
from tests.kit.drafting import Draft, batch_case_of, draft_tree
from tests.kit.exactness import Method as Emission
from tests.kit.exactness import first_tokens, judge_of
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .runs import finish, request

TARGET = dirichlet(4, seed=5)
NEAR = mixed(TARGET, dirichlet(4, seed=9), 0.5)
PLAIN = Method("plain", RULES["sample-and-match"])


def linear(base: float, each: float, slots: int = 64) -> CostModel:
    """A pass costs `base`, and `each` for every row of every sequence."""
    rows, batches = (1, 32), (1, slots)
    verify = tuple((tuple(base + each * b * r for r in rows),) for b in batches)
    return CostModel(rows, (256,), batches, verify)


class Steady(BudgetPlanner):
    """Never believes a clock: passes cost what the model says, a level of drafting costs `level`."""

    def __init__(self, costs: CostModel, level: float = 0.0, score: Score = Score.SHIFTED) -> None:
        super().__init__(costs, score)
        self.level = level

    def drafted(self, drafter: Any, groups: Any, seconds: float) -> None:
        super().drafted(drafter, groups, self.level * max((d.drafts.levels for d in groups), default=0))

    def observe(self, groups: Any, seconds: float) -> None:
        super().observe(groups, 0.0)


def run(batch: int, planner: BudgetPlanner | None, method: Method, tokens: int = 40, **params: Any) -> list[Request]:
    engine = Engine(TableExecutor(TARGET, batch, max_length=160), sharing=Sharing(planner=planner))
    requests = [request([i % 4, i % 3], method, i, max_new_tokens=tokens, seed=i, **params) for i in range(batch)]
    finish(engine, *requests)
    return requests


def drafter(slots: int, model: TableModel = NEAR, length: int = 4) -> ModelDrafter:
    return ModelDrafter(TableExecutor(model, max_slots=slots), Chain(length))


def drafted_per_step(requests: Sequence[Request]) -> float:
    return sum(r.stats.drafted for r in requests) / sum(r.stats.steps for r in requests)


def test_steps_are_timed_where_drafts_are_shared_out_else_now_and_then() -> None:
    """Whoever times a device waits for it. A drafter that prices its drafts itself needs no such time."""
    planner, costs = BudgetPlanner(linear(1.0, 0.1)), linear(1.0, 0.1)
    own = MethodGroup(Method("m", default_rule(drafter(2).kinds, drafter(2).topology), drafter(2)), [], True)
    priced = Method("auto", RULES["sample-and-match"], AutoDrafter([Arm(PromptLookup(2))], costs))
    rest = [MethodGroup(PLAIN, [], False), MethodGroup(priced, [], True)]
    for group in (own, *rest):
        group.requests.append(request([0, 1], group.method, max_new_tokens=4))
    assert all(planner.wants_time([own, *rest]) for _ in range(5))
    seen = [(planner.due, planner.wants_time(rest)) for _ in range(2 * TIME_EVERY)]
    assert seen.count((True, True)) == 2 and seen.count((False, False)) == len(seen) - 2


# --- budgets --------------------------------------------------------------------------------------------------------


def test_budgets_shrink_to_nothing_as_the_batch_grows() -> None:
    """At 8 + 1 per row, one request drafts what it likes; with 64, rows are all that counts."""
    found = []
    for batch in (1, 2, 8, 24, 64):
        method = Method("m", RULES["residual"], drafter(batch))
        found.append(drafted_per_step(run(batch, Steady(linear(8.0, 1.0)), method, temperature=1.0)))
    assert found[0] > 3
    assert sorted(found, reverse=True) == found
    assert found[-1] < 0.5  # the first draft, and a try now and then


def test_a_drafter_that_does_not_pay_is_not_asked() -> None:
    asked: list[int] = []

    class Watched(ModelDrafter):
        def propose(self, sequences: Any, rng: Any) -> Any:
            asked.append(len(sequences))
            return super().propose(sequences, rng)

    near = Watched(TableExecutor(NEAR, 8, max_length=160), Chain(4))
    requests = run(8, Steady(linear(1.0, 10.0)), Method("m", RULES["residual"], near), temperature=1.0, tokens=150)
    steps = max(r.stats.steps for r in requests)
    assert steps > PLANNER_RETRY
    assert 1 < len(asked) <= 2 + steps // PLANNER_RETRY
    assert len(set(asked)) == 1  # everybody is tried at once


def test_drafting_time_counts() -> None:
    """Rows are free here, but a level of drafting takes as long as a pass: nothing pays any more."""
    for level, drafts in ((0.0, True), (30.0, False)):
        method = Method("m", RULES["residual"], drafter(4))
        requests = run(4, Steady(linear(30.0, 0.01), level), method, temperature=1.0)
        assert (drafted_per_step(requests) > 2) is drafts


def test_good_drafters_keep_their_drafts_under_load() -> None:
    """Side by side at a price between them: a drafter that is always right, and one that seldom is."""
    poor, batch = dirichlet(4, seed=77), 8
    good = Method("good", RULES["residual"], drafter(batch, TARGET))
    bad = Method("bad", RULES["residual"], ModelDrafter(TableExecutor(poor, max_slots=batch), Chain(4), name="poor"))
    engine = Engine(TableExecutor(TARGET, max_slots=batch), sharing=Sharing(planner=Steady(linear(10.0, 1.0))))
    requests = [request([i % 4], (good, bad)[i % 2], i, max_new_tokens=60, seed=i) for i in range(batch)]
    finish(engine, *requests)
    assert drafted_per_step(requests[::2]) > 3
    assert drafted_per_step(requests[1::2]) < 1


def test_a_lonely_request_and_an_engine_without_costs_are_left_in_peace() -> None:
    costly = linear(1.0, 100.0)
    method = Method("m", RULES["residual"], drafter(4))
    alone, free = run(1, Steady(costly), method), run(4, None, method)
    for requests in (alone, free):
        expected = run(len(requests), None, Method("m", RULES["residual"], drafter(4)))
        assert [r.stats.as_dict()["drafted"] for r in requests] == [r.stats.drafted for r in expected]


def test_drafters_that_weigh_costs_themselves_are_left_in_peace() -> None:
    class Weighing(PromptLookup):
        cost_aware = True

    guarded = GuardedDrafter(Weighing(), lambda sequence, error: None)
    for drafter, drafts in ((Weighing(), True), (guarded, True), (PromptLookup(), False)):
        requests = run(6, Steady(linear(1.0, 100.0)), Method("m", RULES["one-hot"], drafter), tokens=60)
        assert (drafted_per_step(requests) > 1) is drafts


def test_auto_tries_a_dear_drafter_for_all_at_once() -> None:
    """Requests come and go, and none of them makes the others wait for a try of its own."""
    asked: list[int] = []

    class Watched(ModelDrafter):
        def propose(self, sequences: Any, rng: Any) -> Any:
            asked.append(len(sequences))
            return super().propose(sequences, rng)

    near = Watched(TableExecutor(NEAR, max_slots=4), Chain(2))
    method = Method("auto", RULES["sample-and-match"], AutoDrafter([Arm(near, 2)], linear(1.0, 100.0, 4)))
    engine = Engine(TableExecutor(TARGET, max_slots=4))
    requests = [request([i % 4], method, i, max_new_tokens=6 + i % 5) for i in range(40)]
    finish(engine, *requests)
    steps = method.drafter._calls  # type: ignore[union-attr]
    assert steps > 3 * TRY_EVERY
    assert 2 <= len(asked) <= 1 + steps // TRY_EVERY + 3  # the last few run alone, and try as they like


# --- texts ----------------------------------------------------------------------------------------------------------


def methods(batch: int) -> Iterator[Method]:
    yield Method("lookup", RULES["one-hot"], PromptLookup())
    yield Method("suffix", RULES["sample-and-match"], SuffixDrafter())
    yield Method("chain", RULES["residual"], drafter(batch))
    for shape in (StaticTree((2, 2)), Eagle2Tree(nodes=6, width=2, depth=3), StaticTree((2, 1), drawn=True)):
        made = ModelDrafter(TableExecutor(NEAR, max_slots=batch), shape)
        yield Method(str(shape), default_rule(made.kinds, made.topology), made)
        yield Method(f"{shape} matched", RULES["sample-and-match"], made)


@pytest.mark.parametrize("each", [0.2, 2.0, 20.0])
def test_greedy_texts_do_not_depend_on_budgets(each: float) -> None:
    batch = 6
    plain = [r.sequence.output for r in run(batch, None, PLAIN)]
    for method in methods(batch):
        assert [r.sequence.output for r in run(batch, Steady(linear(10.0, each)), method)] == plain, method.name


def test_drafts_beyond_the_plan_are_cut_and_counted() -> None:
    """Value trees say how good their nodes are: they draft more than fits, and the best is kept."""
    made = ModelDrafter(TableExecutor(NEAR, max_slots=6), Eagle2Tree(nodes=6, width=2, depth=3))
    requests = run(6, Steady(linear(20.0, 1.0)), Method("m", RULES["sample-and-match"], made))
    assert sum(r.stats.cut for r in requests) > 0
    cut = drafted_per_step(requests)
    made = ModelDrafter(TableExecutor(NEAR, max_slots=6), Eagle2Tree(nodes=6, width=2, depth=3))
    free = run(6, None, Method("m", RULES["sample-and-match"], made))
    assert cut < drafted_per_step(free)
    assert sum(r.stats.cut for r in free) == 0


# --- distributions ----------------------------------------------------------------------------------------------------


def drawn(model: TableModel, rng: Rng) -> Draft:
    """A chain of two tokens."""
    return draft_tree(model, (1, 1), Kind.SAMPLED_WITHOUT_REPLACEMENT, rng)


def selected(pair: tuple[Draft, Draft], models: tuple[TableModel, TableModel], score: Score) -> tuple[Draft, ...]:
    """What the engine verifies of two requests' drafts of two tokens each, if two tokens fit in all."""
    method = Method("m", RULES["chain"], drafter(2))
    planner = Steady(linear(1.0, 1.0), score=score)
    planner._fits = {0: 1, 1: 1}
    group = MethodGroup(method, [request([0], method, i, temperature=1.0) for i in range(2)], drafting=True)
    group.drafts = batch_case_of(pair, *models)(None).drafts  # type: ignore[arg-type]
    planner.drafted(drafter(2), [group], 0.0)
    planner.select([group])
    assert sum(group.drafts.lengths()) == 2 == sum(r.stats.cut for r in group.requests)
    check_pair(method.rule, group.drafts.kinds, group.drafts.topology)
    return tuple(
        Draft(d.token[:n], d.parent[:n], d.multiplicity[:n], d.kind[:n])
        for d, n in zip(pair, group.drafts.lengths(), strict=True)
    )


def joint_distortion(rule: str, score: Score, seed: int) -> float:
    """Total variation of the texts of both requests, three tokens each, from the target's own distribution."""
    target, model = dirichlet(3, seed), dirichlet(3, 30 + seed)
    distribution, single = np.zeros((27, 27)), {}
    for weight, pair in outcomes(lambda rng: (drawn(model, rng), drawn(model, rng))):
        kept = selected(pair, (target, model), score)
        for draft in kept:
            if draft not in single:
                only = Emission(lambda rng, draft=draft: draft, judge_of(RULES[rule], target, model))
                single[draft] = first_tokens(only, target, 3).reshape(-1)
        distribution += weight * np.outer(single[kept[0]], single[kept[1]])
    alone = target.joint(3).reshape(-1)
    return float(np.abs(distribution - np.outer(alone, alone)).sum() / 2)


@pytest.mark.parametrize("rule", ["chain", "residual", "block"])
def test_selection_keeps_the_joint_distribution_of_two_requests(rule: str) -> None:
    assert max(joint_distortion(rule, Score.SHIFTED, seed) for seed in range(3)) < 1e-12


def test_the_published_score_changes_the_joint_distribution() -> None:
    assert max(joint_distortion("chain", Score.PUBLISHED, seed) for seed in range(3)) > 0.01


def test_the_published_score_is_refused_for_drawn_drafts_at_a_temperature() -> None:
    engine = Engine(TableExecutor(TARGET), sharing=Sharing(planner=BudgetPlanner(linear(1, 1), Score.PUBLISHED)))
    method = Method("m", RULES["residual"], drafter(1))
    with pytest.raises(UsageError, match="biased at temperature > 0"):
        engine.add(request([0], method, temperature=0.5))
    engine.add(request([0], method))
    engine.add(request([0], Method("lookup", RULES["one-hot"], PromptLookup()), temperature=0.5))


@pytest.mark.parametrize(("drafting", "drafts"), [(0.2, True), (9.0, False)], ids=["pays", "does not"])
def test_the_clock_overrules_prices_that_know_nothing_of_the_host(drafting: float, drafts: bool) -> None:
    """By its prices drafting is worth it; what a step with drafts really takes is seen by the clock alone."""
    now = [0.0]
    asked: list[int] = []

    class Slow(TableExecutor):
        def forward(self, rows: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append(max(rows.counts) > 1)
            now[0] += 1 + drafting * asked[-1]
            return super().forward(rows, *args, **kwargs)

    class Stubborn(BudgetPlanner):
        def observe(self, groups: Any, seconds: float) -> None:
            super().observe(groups, 1e-9)  # passes and drafts that are over in no time: all else is the host's

        def drafted(self, drafter: Any, groups: Any, seconds: float) -> None:
            super().drafted(drafter, groups, 0.0)

    planner = Stubborn(linear(1e-9, 1e-12), clock=lambda: now[0])
    right = ModelDrafter(TableExecutor(TARGET, 8, max_length=700), Chain(4))
    method = Method("m", RULES["residual"], right)
    engine = Engine(Slow(TARGET, 8, max_length=700), sharing=Sharing(planner=planner))
    requests = [request([i % 4], method, i, max_new_tokens=300, seed=i, temperature=1.0) for i in range(8)]
    finish(engine, *requests)
    share = sum(asked) / len(asked)
    assert share > 0.7 if drafts else share < 0.3
