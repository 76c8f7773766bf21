"""Model drafters on table models: the draft model's K/V follows the text, whatever is accepted."""

from __future__ import annotations

import pytest

from foredraft.core.rules import RULES, default_rule
from foredraft.core.shape import Chain, Shape, StaticTree
from foredraft.draft.model import ModelDrafter
from foredraft.draft.synthetic import SyntheticDrafter
from foredraft.engine import Engine, Method
from tests.engine.runs import finish, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet, mixed

TARGET = dirichlet(4, seed=5, alpha=0.5)
SHAPES: list[Shape] = [Chain(1), Chain(4), StaticTree((2, 2, 1)), StaticTree((3, 1), drawn=True)]


def plain(executor: TableExecutor, prompt: list[int], tokens: int) -> list[int]:
    method = Method("plain", RULES["sample-and-match"])
    return finish(Engine(executor), request(prompt, method, max_new_tokens=tokens))[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_draft_cache_follows_the_text(shape: Shape, share: float) -> None:
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
    if share == 1.0 and isinstance(shape, Chain):  # the oracle: every draft is right
        assert all(each.stats.accepted == each.stats.drafted for each in requests)
    assert sorted(drafter._free) == [0, 1, 2]


def test_drafting_ends_at_the_drafters_context() -> None:
    drafter = ModelDrafter(TableExecutor(TARGET, max_length=8), Chain(4))
    method = Method("m", RULES["residual"], drafter)
    each = request([0, 1, 2], method, max_new_tokens=20)
    finish(Engine(TableExecutor(TARGET)), each)
    assert each.sequence.generated == 20
    assert 0 < each.stats.drafted <= 8
    assert each.stats.steps > 10


@pytest.mark.parametrize("rate", [0.0, 0.7, 1.0])
def test_synthetic_acceptance_is_what_was_set(rate: float) -> None:
    prompts = [[i % 4, i // 4 % 4, i // 16] for i in range(48)]
    answers = {tuple(p): plain(TableExecutor(TARGET), p, 60) for p in prompts}
    method = Method("m", RULES["sample-and-match"], SyntheticDrafter(answers, rate, max_nodes=4))
    requests = [request(p, method, i, max_new_tokens=60, seed=i) for i, p in enumerate(prompts)]
    outputs = finish(Engine(TableExecutor(TARGET, max_slots=48, max_length=80)), *requests)
    assert outputs == [answers[tuple(p)] for p in prompts]
    tried = sum(r.stats.drafted_by_position[0] for r in requests)
    passed = sum(r.stats.accepted_by_position[0] for r in requests)
    assert passed / tried == pytest.approx(rate, abs=0.06)  # four standard deviations of 1,100 flips
