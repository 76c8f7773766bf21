"""Relays: a chain that begins with one drafter and goes on with another, of mixed kinds and still exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, StaticTree
from foredraft.core.verify import RULES, check_pair, default_rule
from foredraft.draft import Drafter
from foredraft.draft.cascades import relay as relay_module
from foredraft.draft.cascades.cascade import CascadeDrafter
from foredraft.draft.cascades.relay import RelayDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.maxgram import MaxGram
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Engine, Method
from foredraft.errors import BiasedPairError, UsageError
from foredraft.types import Kind, Topology
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import WIDTHS, TableModel, dirichlet, mixed

from .texts import LOOPING, PROMPTS, TARGET, greedy, run, text_of

DRAWN = Kind.SAMPLED_WITHOUT_REPLACEMENT
NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)


def model(table: TableModel, length: int = 5, context: int = 128) -> ModelDrafter:
    return ModelDrafter(TableExecutor(table, max_slots=3, max_length=context), Chain(length))


def cascade(table: TableModel) -> CascadeDrafter:
    return CascadeDrafter(TableExecutor(table, max_slots=3, max_length=128), MaxGram(), 2, 3)


def rng_for(batch: int) -> KeyedRng:
    return KeyedRng(*torch.arange(3 * batch).reshape(3, batch))


RELAYS: dict[str, Callable[[], RelayDrafter]] = {
    "model, max-gram": lambda: RelayDrafter(model(NEAR), MaxGram(4), 3),
    "model, lookup": lambda: RelayDrafter(model(LOOPING), PromptLookup(4), 2),
    "lookup, model's cascade": lambda: RelayDrafter(PromptLookup(2), cascade(NEAR)),
    "cascade, max-gram": lambda: RelayDrafter(cascade(NEAR), MaxGram(4)),
    "three": lambda: RelayDrafter(RelayDrafter(model(NEAR), cascade(NEAR), 1), MaxGram(3)),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("relay", RELAYS)
def test_greedy_identity(relay: str, batch: int) -> None:
    for target in (TARGET, LOOPING):
        made = RELAYS[relay]()
        first = made.members[0]

        def slots_follow(engine: Engine, first: Drafter = first) -> None:
            for each in engine.scheduler.running if type(first) is ModelDrafter else ():
                executor, slot = first.executor, first._slots[each.id]
                assert isinstance(executor, TableExecutor) and not executor.scratch[slot]
                assert executor.text[slot] == each.sequence.tokens[: executor.length(slot)]

        assert run(made, target, batch, slots_follow) > 0


def test_the_second_goes_on_where_the_first_stops() -> None:
    relay = RelayDrafter(model(LOOPING), MaxGram(4), first_length=2)
    assert relay.nodes == 6 and relay.kinds == {DRAWN, Kind.CHOSEN} and relay.topology is Topology.CHAIN
    texts = [text_of([0, 1, 2, 0, 1, 2, 0], 0, depth=5), text_of([3, 3, 3, 1], 1, depth=1)]
    relay.begin(texts)
    drafts = relay.propose(texts, rng_for(2))
    drafts.check()
    alone = MaxGram()
    alone.begin(texts)
    head = greedy(LOOPING, texts[0].tokens, 2)
    assert drafts.tree(0).token == head + alone.continue_from(texts[:1], [head], [3])[0]
    assert drafts.tree(0).kind == [DRAWN] * 2 + [Kind.CHOSEN] * 3
    assert drafts.tree(1).token == greedy(LOOPING, texts[1].tokens, 1) and drafts.tree(1).kind == [DRAWN]


def enumerated(vocab: int, length: int, rule: str, context: int = 64, width: int | None = 2) -> float:
    """How far the distribution of the tokens after a prompt is from the target's, at temperature 1."""
    target = dirichlet(vocab, seed=1, support=width)
    near = mixed(target, dirichlet(vocab, seed=2, support=width), 0.5)
    tokens = length + 2  # one drafted token at least is the second drafter's

    def build() -> Method:
        first = ModelDrafter(TableExecutor(near, max_length=context), Chain(2))
        return Method("m", RULES[rule], RelayDrafter(first, MaxGram(3), length))

    distribution = distribution_of_texts(target, build, tokens)
    return float(np.abs(distribution - target.joint(tokens, (0, 1))).max())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rule", ["residual", "one-hot", "sample-and-match"])
@pytest.mark.parametrize(
    ("vocab", "length", "context"), [(3, 1, 64), (2, 2, 64), (3, 1, 4)], ids=["one", "two", "short context"]
)
def test_the_targets_distribution_is_exact(vocab: int, length: int, context: int, rule: str, width: int | None) -> None:
    """The p/q rule looks at drawn tokens with their distribution and at those after them as chosen ones."""
    assert enumerated(vocab, length, rule, context, width) < 1e-6  # distributions are float32 in the engine


def test_kinds_that_lie_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check sees a relay that calls all its tokens drawn."""
    honest = relay_module._mixed
    monkeypatch.setattr(relay_module, "_mixed", lambda *parts: replace(honest(*parts), node_kind=None))
    assert enumerated(3, 1, "residual") > 1e-3


def test_rules_that_cannot_mix_are_refused() -> None:
    relay = RelayDrafter(model(NEAR), MaxGram())
    assert default_rule(relay.kinds, relay.topology) is RULES["residual"]
    for name in ("chain", "block", "residual-iid"):
        with pytest.raises(BiasedPairError, match="CHOSEN"):
            check_pair(RULES[name], relay.kinds, relay.topology)
    with pytest.raises(UsageError, match="only a chain"):
        RelayDrafter(ModelDrafter(TableExecutor(TARGET), StaticTree((2, 2))), MaxGram())


def test_texts_too_long_for_the_first_are_left_to_the_second() -> None:
    """Batches in which some sequences have drawn tokens and others have not; requests sample."""
    short = model(NEAR, 3, context=9)
    relay = RelayDrafter(short, MaxGram(3))
    texts = [text_of([0, 1] * 7, 0), text_of([2, 3, 2], 1), text_of([1] * 12, 2)]
    relay.begin(texts)
    drafts = relay.propose(texts, rng_for(3))
    drafts.check()
    assert [set(drafts.tree(b).kind) for b in range(3)] == [{Kind.CHOSEN}, {DRAWN, Kind.CHOSEN}, {Kind.CHOSEN}]
    assert drafts.distributions is not None
    single, two = model(NEAR, 3), text_of([2, 3, 2], 1)
    single.begin([two])
    alone = single.propose([two], rng_for(3).choose(torch.tensor([1])))
    assert drafts.tree(1).token[:3] == alone.tree(0).token and alone.distributions is not None
    for row in range(3):
        distribution = drafts.distributions.at(torch.full((3,), row)).dense()[1]
        assert torch.allclose(distribution, alone.distributions.at(torch.tensor([row])).dense()[0])
    method = Method("m", RULES["residual"], RelayDrafter(model(NEAR, 3, context=9), MaxGram(3)))
    requests = [request(p, method, i, max_new_tokens=14) for i, p in enumerate(PROMPTS)]
    outputs = finish(Engine(TableExecutor(LOOPING, max_slots=3)), *requests)
    assert outputs == [greedy(LOOPING, p, 14) for p in PROMPTS]
