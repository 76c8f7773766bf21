"""Drafters under length rules, run by the real engine on table models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from foredraft.control.cost import CostModel, Costs, DraftTiming
from foredraft.control.lengths import LENGTHS
from foredraft.control.lengths.base import Fixed, Heuristic, LengthRule
from foredraft.control.lengths.expected import Expected
from foredraft.control.lengths.predicted import Predicted
from foredraft.control.lengths.thompson import CalibratedThompson, CostThompson, Thompson
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, Shape, StaticTree, Stop
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.shapes.stops import AdaptiveConfidence
from foredraft.core.verify import RULES, default_rule
from foredraft.draft import Drafter
from foredraft.draft.cascades.relay import RelayDrafter
from foredraft.draft.combine.fused import FusedDrafter
from foredraft.draft.combine.length_control import LengthControlDrafter, TimedRound, with_length
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.maxgram import MaxGram
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Engine, Method
from foredraft.types import Budget, SamplingParams, Sequence
from tests.control.test_lengths import remembered
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import NARROW, TARGET, distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.length_races import linear_times
from tests.kit.tables import dirichlet, mixed

TIMES = linear_times(0.2, 0.02)
GREEDY = dirichlet(4, seed=5, alpha=0.5)
LIKE_IT = mixed(GREEDY, dirichlet(4, seed=6), 0.6)


def both(rule: AdaptiveConfidence | CalibratedThompson) -> tuple[LengthRule, Stop | None]:
    return rule, rule


@dataclass
class Contrary:
    """Drafts one token more than the last round had rejected: no rule leans harder on what the verifier's rng did."""

    _rejected: dict[int, int] = field(default_factory=dict)

    def longest(self, id: int, limit: int) -> int:
        return min(limit, self._rejected.get(id, 0) + 1)

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        self._rejected[id] = drafted - accepted

    def end(self, id: int) -> None:
        self._rejected.pop(id, None)


# A length rule, and the stop rule that goes into the chain with it.
PACES: dict[str, Callable[[], tuple[LengthRule, Stop | None]]] = {
    "fixed": lambda: (Fixed(2), None),
    "heuristic": lambda: (Heuristic(1), None),
    "coins": lambda: (Thompson(), None),
    "Thompson over lengths": lambda: (CostThompson(seconds=TIMES), None),
    "cost model": lambda: (Expected(seconds=TIMES), None),
    "predicted": lambda: (Predicted(lambda id: 2.0), None),
    "contrary": lambda: (Contrary(), None),
    "adaptive confidence": lambda: both(AdaptiveConfidence(first=0.5, step=1.0)),
    "calibrated coins": lambda: both(CalibratedThompson(seed=3, weight=8.0)),
}


@dataclass
class Scripted:
    """Gives lengths out by list and writes down what it is given."""

    lengths: list[int]
    asked: list[tuple[int, int]] = field(default_factory=list)
    given: list[tuple[int, int, int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def longest(self, id: int, limit: int) -> int:
        self.asked.append((id, limit))
        return self.lengths[len([who for who, _ in self.asked if who == id]) % len(self.lengths)]

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        self.given.append((id, drafted, accepted))

    def end(self, id: int) -> None:
        self.ended.append(id)


def controlled(name: str, length: int, executor: TableExecutor) -> LengthControlDrafter:
    rule, stop = PACES[name]()
    return LengthControlDrafter(ModelDrafter(executor, Chain(length, stop)), rule)


def greedy_text(prompt: list[int], tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(GREEDY.next_distribution(text).argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("tokens", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PACES)
def test_texts_follow_the_target(name: str, tokens: int) -> None:
    """The distribution of some tokens over all rounds that they take, memory included, under the p/q rule."""

    def build() -> Method:
        return Method("m", RULES["residual"], controlled(name, 2, TableExecutor(NARROW)))

    distribution = distribution_of_texts(TARGET, build, tokens)
    assert np.abs(distribution - TARGET.joint(tokens, (0, 1))).max() < 1e-6


@pytest.mark.parametrize("name", PACES)
def test_greedy_text_is_plain_decoding(name: str) -> None:
    """A batch of different lengths; the rule keeps nothing once its requests are over."""
    drafter = controlled(name, 5, TableExecutor(LIKE_IT, max_slots=3))
    method = Method("m", RULES["residual"], drafter)
    prompts = [[0], [1, 2, 3, 0, 1], [3, 3]]
    requests = [request(p, method, i, max_new_tokens=20 + i) for i, p in enumerate(prompts)]
    outputs = finish(Engine(TableExecutor(GREEDY, max_slots=3)), *requests)
    assert outputs == [greedy_text(p, 20 + i) for i, p in enumerate(prompts)]
    assert sum(r.stats.accepted for r in requests) > 10
    assert not remembered(drafter.rule)


@pytest.mark.parametrize(
    "shape", [Chain(4), StaticTree((2, 2, 1)), StaticTree((2, 1), drawn=True), Eagle2Tree(6, 2, 3)]
)
def test_the_rule_sets_lengths_and_hears_what_came_of_them(shape: Shape) -> None:
    rule = Scripted([0, 1, 2, 3])
    drafter = LengthControlDrafter(ModelDrafter(TableExecutor(LIKE_IT, max_slots=2), shape), rule)
    method = Method("m", default_rule(drafter.kinds, drafter.topology), drafter)
    requests = [request([i, 1], method, i, max_new_tokens=24) for i in range(2)]
    outputs = finish(Engine(TableExecutor(GREEDY, max_slots=2)), *requests)
    assert outputs == [greedy_text([i, 1], 24) for i in range(2)]
    for each in requests:
        given = [(drafted, accepted) for id, drafted, accepted in rule.given if id == each.id]
        limits = [limit for id, limit in rule.asked if id == each.id]
        depth = len(shape.spec) if isinstance(shape, StaticTree) else getattr(shape, "depth", shape.nodes)
        hoped = [min((i + 1) % 4, limit, depth) for i, limit in enumerate(limits)]
        assert [drafted for drafted, _ in given][: len(limits)] == hoped
        assert sum(accepted for _, accepted in given) + len(given) >= 24  # every round adds one token of its own
        assert all(accepted <= drafted for drafted, accepted in given)
    assert sorted(rule.ended) == [0, 1]


@pytest.mark.parametrize(
    "team", [lambda first: RelayDrafter(first, MaxGram(6)), lambda first: FusedDrafter([PromptLookup(6), first])]
)
def test_the_rule_hears_of_its_own_drafts_alone(team: Callable[[Drafter], Drafter]) -> None:
    """This drafter is always right; what others of a team add to its drafts is not."""
    rule = Scripted([2])
    drafter = team(LengthControlDrafter(ModelDrafter(TableExecutor(GREEDY), Chain(5)), rule))
    each = request([0, 1], Method("m", default_rule(drafter.kinds, drafter.topology), drafter), max_new_tokens=40)
    assert finish(Engine(TableExecutor(GREEDY)), each)[0] == greedy_text([0, 1], 40)
    assert each.stats.drafted > sum(drafted for _, drafted, _ in rule.given)
    assert {drafted for _, drafted, _ in rule.given[:-2]} == {2}
    assert all(drafted == accepted for _, drafted, accepted in rule.given)


def test_a_drafter_sleeps_while_nobody_drafts() -> None:
    executor = TableExecutor(LIKE_IT)
    method = Method("m", RULES["residual"], LengthControlDrafter(ModelDrafter(executor, Chain(3)), Fixed(0)))
    each = request([0, 1], method, max_new_tokens=10)
    assert finish(Engine(TableExecutor(GREEDY)), each)[0] == greedy_text([0, 1], 10)
    assert executor.passes == 0 and each.stats.drafted == 0


def test_everything_is_passed_on() -> None:
    inner = ModelDrafter(TableExecutor(LIKE_IT, max_length=40), StaticTree((2, 2)), name="inner")
    inner.taps = frozenset({3})
    outer = LengthControlDrafter(inner, Fixed(3))
    for attribute in Drafter.__annotations__:
        assert getattr(outer, attribute) == getattr(inner, attribute)


def test_budgets_are_given_back() -> None:
    """Others may draft for the same sequence in the same round, and hold to the scheduler's budget."""
    sequences = [Sequence(i, [0, 1, 0, 1], 4, SamplingParams(), 0, budget=Budget(8, 6)) for i in range(2)]
    drafter = LengthControlDrafter(PromptLookup(8), Scripted([9, 2]))
    drafter.begin(sequences)
    rng = KeyedRng(*torch.zeros((3, 2), dtype=torch.int64))
    assert drafter.propose(sequences, rng).lengths() == (2, 2)
    assert [s.budget for s in sequences] == [Budget(8, 6)] * 2
    stranger = Sequence(7, [0], 1, SamplingParams(), 0, budget=Budget(8, 6))
    with pytest.raises(KeyError):  # a drafter that fails leaves the budget alone, too
        drafter.propose([stranger], rng)
    assert stranger.budget == Budget(8, 6)


@pytest.mark.parametrize("name", [name for name in PACES if name != "cost model"])
def test_a_sampled_text_depends_on_neither_its_id_nor_its_batch_mates(name: str) -> None:
    """Which the cost model does not promise: it learns from all requests."""

    def text(number: int, mates: int) -> list[int]:
        drafter = controlled(name, 4, TableExecutor(LIKE_IT, max_slots=4))
        method = Method("m", RULES["residual"], drafter)
        others = [request([2], method, i, max_new_tokens=25, temperature=1.0, seed=i) for i in range(mates)]
        mine = request([0, 1], method, number, max_new_tokens=30, temperature=1.0, seed=11)
        return finish(Engine(TableExecutor(GREEDY, max_slots=4)), *others, mine)[-1]

    assert text(0, 0) == text(7, 3)


@pytest.mark.parametrize("name", LENGTHS)
def test_rules_of_the_table_by_their_names(name: str) -> None:
    """Greedy text is plain decoding's, and where drafting takes no time on the clock the rule knows."""
    inner = ModelDrafter(TableExecutor(LIKE_IT), Chain(5))
    drafter = with_length(inner, name, CostModel((1, 8), (64,), (1,), (((0.01, 0.02),),)))
    each = request([0, 1], Method("m", RULES["residual"], drafter), max_new_tokens=20)
    assert finish(Engine(TableExecutor(GREEDY)), each)[0] == greedy_text([0, 1], 20)
    assert each.stats.drafted > 0


def test_the_time_of_drafting_is_measured() -> None:
    """A second for each draft step: nothing pays beside passes of 10 ms, and the rule learns it in one round."""
    now = iter(range(1000))
    costs = Costs(CostModel((1, 8), (64,), (1,), (((0.01, 0.02),),)))
    seconds = TimedRound(costs, DraftTiming())
    inner = ModelDrafter(TableExecutor(LIKE_IT), Chain(5))
    drafter = LengthControlDrafter(inner, Expected(seconds=seconds), seconds, clock=lambda: float(next(now)))
    each = request([0, 1], Method("m", RULES["residual"], drafter), max_new_tokens=12)
    finish(Engine(TableExecutor(GREEDY)), each)
    assert 0 < each.stats.drafted <= 5 and seconds.timing.rounds == 1


def steps(engine: Engine) -> Iterator[None]:
    while not engine.scheduler.idle:
        engine.step()
        yield


@pytest.mark.parametrize("name", PACES)
def test_a_cancelled_request_is_forgotten(name: str) -> None:
    drafter = controlled(name, 4, TableExecutor(LIKE_IT, max_slots=2))
    method = Method("m", RULES["residual"], drafter)
    requests = [request([i], method, i, max_new_tokens=30) for i in range(2)]
    engine = Engine(TableExecutor(GREEDY, max_slots=2))
    for each in requests:
        engine.add(each)
    for _, _ in zip(range(3), steps(engine), strict=False):
        pass
    engine.cancel(requests[0])
    assert 0 not in remembered(drafter.rule)
    for _ in steps(engine):
        pass
    assert not remembered(drafter.rule)
