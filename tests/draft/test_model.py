"""Model drafters on table models: the draft model's K/V follows the text, whatever is accepted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain, Shape, StaticTree, Stepper
from foredraft.core.trees.editing import keep
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.synthetic import SyntheticDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import UsageError
from foredraft.types import Budget, DraftBatch
from tests.engine.runs import finish, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import at_temperature_zero, dirichlet, mixed

TARGET = dirichlet(4, seed=5, alpha=0.5)
SHAPES: list[Shape] = [Chain(1), Chain(4), StaticTree((2, 2, 1)), StaticTree((3, 1), drawn=True)]


def plain(executor: TableExecutor, prompt: list[int], tokens: int) -> list[int]:
    method = Method("plain", RULES["sample-and-match"])
    return finish(Engine(executor), request(prompt, method, max_new_tokens=tokens))[0]


def cache_follows_the_text(shape: Shape, share: float) -> None:
    """A batch of different lengths, drafted by the target itself, by something near it, and by something else."""
    drafting = TableExecutor(mixed(TARGET, dirichlet(4, seed=6), share), max_slots=3)
    drafter = ModelDrafter(drafting, shape)
    method = Method("m", default_rule(drafter.kinds, drafter.topology), drafter)
    prompts = [[0], [1, 2, 3, 0, 1], [3, 3]]
    requests = [request(p, method, i, max_new_tokens=9 + i) for i, p in enumerate(prompts)]
    engine = Engine(TableExecutor(TARGET, max_slots=3))
    for each in requests:
        engine.add(each)
    while not engine.scheduler.idle:
        engine.step()
        for each in engine.scheduler.running:
            slot = drafter._slots[each.id]
            read = drafting.text[slot]
            assert read == each.sequence.tokens[: len(read)]
            assert not drafting.scratch[slot]
    for each, prompt in zip(requests, prompts, strict=True):
        assert each.sequence.output == plain(TableExecutor(TARGET), prompt, each.sequence.params.max_new_tokens)
        assert each.stats.drafted > 0
    if share == 1.0 and isinstance(shape, Chain):  # the oracle: every draft is right
        assert all(each.stats.accepted == each.stats.drafted for each in requests)
    assert sorted(drafter._free) == [0, 1, 2]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_draft_cache_follows_the_text(shape: Shape, share: float) -> None:
    cache_follows_the_text(shape, share)


def test_drafting_ends_at_the_drafters_context() -> None:
    drafter = ModelDrafter(TableExecutor(TARGET, max_length=8), Chain(4))
    method = Method("m", RULES["residual"], drafter)
    each = request([0, 1, 2], method, max_new_tokens=20)
    finish(Engine(TableExecutor(TARGET)), each)
    assert each.sequence.generated == 20
    assert 0 < each.stats.drafted <= 8
    assert each.stats.steps > 10


@pytest.fixture(scope="module", params=[16, pytest.param(48, marks=pytest.mark.slow)])
def answers(request: pytest.FixtureRequest) -> dict[tuple[int, ...], list[int]]:
    """What the target writes after some prompts."""
    prompts = [[i % 4, i // 4 % 4, i // 16] for i in range(request.param)]
    return {tuple(p): plain(TableExecutor(TARGET), p, 60) for p in prompts}


@pytest.mark.parametrize("rate", [0.0, 0.7, 1.0])
def test_synthetic_acceptance_is_what_was_set(rate: float, answers: dict[tuple[int, ...], list[int]]) -> None:
    prompts = list(answers)
    method = Method("m", RULES["sample-and-match"], SyntheticDrafter(answers, rate, max_nodes=4))
    requests = [request(p, method, i, max_new_tokens=60, seed=i) for i, p in enumerate(prompts)]
    outputs = finish(Engine(TableExecutor(TARGET, max_slots=48, max_length=80)), *requests)
    assert outputs == list(answers.values())
    tried = sum(r.stats.drafted_by_position[0] for r in requests)
    passed = sum(r.stats.accepted_by_position[0] for r in requests)
    # Four standard deviations of the flips: 0.06 where 1,100 are tried.
    assert passed / tried == pytest.approx(rate, abs=2 / tried**0.5)


@dataclass(frozen=True)
class Pruned(StaticTree):
    """A shape that drops nodes again and so numbers them again: every second leaf of a chosen tree."""

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        whole = super().grow(stepper, budgets, rng)
        leaf = torch.ones_like(whole.token, dtype=torch.bool).scatter_(1, whole.parent.clamp(min=0), False)
        return keep(whole, ~leaf | (whole.order == 0))


def test_a_shape_may_drop_nodes_again() -> None:
    drafting = TableExecutor(TARGET, max_slots=2)
    drafter = ModelDrafter(drafting, Pruned((2, 2, 2)))
    method = Method("m", RULES["sample-and-match"], drafter)
    requests = [request([i], method, i, max_new_tokens=14) for i in range(2)]
    engine = Engine(TableExecutor(TARGET, max_slots=2))
    for each in requests:
        engine.add(each)
    while not engine.scheduler.idle:
        engine.step()
        for each in engine.scheduler.running:
            read = drafting.text[drafter._slots[each.id]]
            assert read == each.sequence.tokens[: len(read)]
    for i, each in enumerate(requests):
        assert each.sequence.output == plain(TableExecutor(TARGET), [i], 14)


def test_a_distribution_may_have_fewer_tokens_than_children() -> None:
    """A drafter that is sure of one token drafts one child, and nothing of the target's distribution is lost."""
    sure = at_temperature_zero(dirichlet(4, seed=2))
    counts = np.zeros(4)
    distribution = TARGET.next_distribution([1])
    for seed in range(400):
        method = Method("m", RULES["residual"], ModelDrafter(TableExecutor(sure), StaticTree((3,), drawn=True)))
        each = request([1], method, max_new_tokens=2, temperature=1.0, seed=seed)
        finish(Engine(TableExecutor(TARGET)), each)
        counts[each.sequence.output[0]] += 1
        assert each.stats.drafted <= 1
    assert chisquare(counts, distribution / distribution.sum() * 400).pvalue > 1e-3


@pytest.mark.parametrize("size", [3, 6])
def test_vocabularies_of_one_tokenizer_may_be_padded_differently(size: int) -> None:
    drafter = ModelDrafter(TableExecutor(dirichlet(size, seed=2)), Chain(3), vocab_size=4)
    method = Method("m", RULES["residual"], drafter)
    for temperature in (0.0, 1.0):
        each = request([1, 2], method, max_new_tokens=12, temperature=temperature, seed=4)
        finish(Engine(TableExecutor(TARGET)), each)
        assert each.stats.drafted > 0
        if temperature == 0:
            assert each.sequence.output == plain(TableExecutor(TARGET), [1, 2], 12)


def test_two_methods_share_a_drafter() -> None:
    drafter = ModelDrafter(TableExecutor(TARGET, max_slots=2), Chain(3))
    methods = [Method("a", RULES["residual"], drafter), Method("b", RULES["block"], drafter)]
    requests = [request([i], methods[i], i, max_new_tokens=10 + i) for i in range(2)]
    outputs = finish(Engine(TableExecutor(TARGET, max_slots=2)), *requests)
    assert outputs == [plain(TableExecutor(TARGET), [i], 10 + i) for i in range(2)]


def test_a_draft_that_cannot_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="exceeds the 64"):
        ModelDrafter(TableExecutor(TARGET), StaticTree((4, 4, 4, 4)))
