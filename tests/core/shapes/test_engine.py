"""Shapes in the real engine: the target's text at temperature 0, its distribution at 1, and the draft model's K/V."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.shapes.base import Shape
from foredraft.core.shapes.drawn_tree import IndependentTree, TopThenDrawnTree
from foredraft.core.shapes.dyspec import DySpec
from foredraft.core.shapes.dyspec_layers import DySpecLayers
from foredraft.core.shapes.opt_tree import OptTree
from foredraft.core.shapes.sequoia import Sequoia
from foredraft.core.shapes.static_tree import StaticTree, rank_paths
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.models import shallow
from foredraft.runtime import TorchExecutor
from foredraft.types import Kind
from tests.draft.test_model import cache_follows_the_text
from tests.engine.runs import finish, one, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet, mixed
from tests.train import toys
from tests.train.test_drafters import drafter

SHAPES: list[Shape] = [
    StaticTree(rank_paths("0 1 2 00 02 10 000")),
    StaticTree(Sequoia((0.6, 0.2), 8, 4).paths(8, 4), drawn=True),
    IndependentTree((3, 2, 1)),
    TopThenDrawnTree((3, 2, 1)),
    OptTree(nodes=8, depth=3, gain=0.1),
    DySpec(nodes=8, depth=3),
    DySpec(nodes=8, depth=3, drawn=False),
    DySpecLayers(nodes=8, width=4, depth=3, threshold=0.05),
    DySpecLayers(nodes=8, width=4, depth=3, threshold=0.05, adapt=0.3),
]
EVERY = pytest.mark.parametrize("shape", SHAPES, ids=str)
TARGET = dirichlet(4, seed=5, alpha=0.5)
PLAIN = Method("plain", RULES["sample-and-match"])


@EVERY
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_the_draft_cache_follows_the_text(shape: Shape, share: float) -> None:
    cache_follows_the_text(shape, share)


PLAIN_TEXTS: dict[str, list[list[int]]] = {}


def plain_texts(prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """What the toy writes without drafts, written once."""
    key = repr((prompts, tokens))
    if key not in PLAIN_TEXTS:
        engine = Engine(TorchExecutor(toys.target(), len(prompts), 100))
        plain = [request(p, PLAIN, i, max_new_tokens=tokens) for i, p in enumerate(prompts)]
        PLAIN_TEXTS[key] = finish(engine, *plain)
    return PLAIN_TEXTS[key]


@EVERY
def test_greedy_identity_with_a_real_decoder(shape: Shape) -> None:
    """The target's own first layers draft for it; the text is that of plain decoding, with fewer passes."""
    decoder = toys.target()
    prompts = [[1, 2, 3], [4, 5], list(range(1, 40))]
    made = ModelDrafter(TorchExecutor(shallow(decoder, 4), 3, 100), shape)
    method = Method("m", default_rule(made.kinds, made.topology), made)
    requests = [request(p, method, i, max_new_tokens=24) for i, p in enumerate(prompts)]
    assert finish(Engine(TorchExecutor(decoder, 3, 100)), *requests) == plain_texts(prompts, 24)
    assert sum(each.stats.accepted for each in requests) > 0


@EVERY
@pytest.mark.parametrize("kind", ["eagle3", "fastdraft", "medusa", "mlp-speculator"])
def test_greedy_identity_with_trained_heads(kind: str, shape: Shape) -> None:
    """Heads hand states from node to node. Those without attention take calls for levels, which DySpec's are not: its
    drafts are then poor ones, and still drafts of the distributions that go with them."""
    decoder, prompts = toys.target(), [[1, 2, 3], [6, 7, 8, 9, 10, 11, 12]]
    made = drafter(decoder, kind, shape, slots=2)
    method = Method(kind, default_rule(made.kinds, made.topology), made)
    requests = [request(p, method, i, max_new_tokens=16) for i, p in enumerate(prompts)]
    assert finish(Engine(TorchExecutor(decoder, 2, 100)), *requests) == plain_texts(prompts, 16)
    assert all(each.stats.drafted > 0 for each in requests)


@EVERY
def test_a_seed_gives_the_same_text_alone_and_in_a_batch(shape: Shape) -> None:
    near = mixed(TARGET, dirichlet(4, seed=9), 0.5)
    rule = RULES["one-hot"] if shape.kind is Kind.CHOSEN else default_rule(frozenset({shape.kind}), shape.topology)

    def run(slots: int) -> list[list[int]]:
        if isinstance(shape, DySpecLayers):
            shape._thresholds.clear()  # what requests of the same numbers have taught it before
        method = Method("m", rule, ModelDrafter(TableExecutor(near, max_slots=slots), shape))
        requests = [request([i % 4], method, i, max_new_tokens=12, temperature=1.0, seed=i) for i in range(6)]
        return finish(Engine(TableExecutor(TARGET, max_slots=slots)), *requests)

    assert run(1) == run(4)


SMALL = dirichlet(3, seed=1)
NARROW = dirichlet(3, seed=3, support=2)  # two possible tokens at a place keep the enumeration of trees short


@pytest.mark.parametrize(
    "shape",
    [
        DySpec(nodes=3, depth=2),
        DySpecLayers(nodes=3, width=2, depth=2, threshold=0.2),
        StaticTree(rank_paths("0 1 00"), drawn=True),
        OptTree(nodes=3, depth=2, gain=0.1),
    ],
    ids=str,
)
def test_the_distribution_of_whole_texts(shape: Shape) -> None:
    """After a prompt of two tokens, the next three follow the product of the target's own distributions."""
    distribution = np.zeros((3,) * 3)

    def run(rng: EnumeratingRng) -> list[int]:
        made = ModelDrafter(TableExecutor(NARROW), shape)
        method = Method("m", default_rule(made.kinds, made.topology), made)
        return one(TableExecutor(SMALL), method, 3, rng, temperature=1.0)

    for weight, text in outcomes(run):
        distribution[tuple(text)] += weight
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6
