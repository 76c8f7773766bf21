"""Value trees grown on the host, against the same growth in tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.control.cost import CostModel
from foredraft.control.cost_aware_tree import PricedTree
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Frontier, Step
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.draft.neural.captured_drafts import sure_block
from foredraft.types import Budget, DraftBatch

CPU = torch.device("cpu")
BATCH, VOCAB = 3, 11
COSTS = CostModel((1, 8), (64,), (1,), (((1.0, 1.7),),))


class Bigrams:
    """A drafter whose distribution after a token is a row of a table; remembers the columns of parents that it got."""

    def __init__(self, seed: int) -> None:
        self.batch, self.ids, self.device = BATCH, tuple(range(BATCH)), CPU
        torch.manual_seed(seed)
        self.table = torch.randn(VOCAB, VOCAB) * 2
        self.seen: list[Tensor] = []

    def _step(self, token: Tensor) -> Step:
        return Step(self.table[token.flatten()], torch.arange(token.numel()).view_as(token), sure_block(BATCH, CPU))

    def root(self) -> Step:
        self.seen = []
        return self._step(torch.arange(BATCH)[:, None])

    def expand(self, frontier: Frontier) -> Step:
        if frontier.above is not None and self.seen:
            assert torch.equal(self.seen[-1].gather(1, frontier.above), frontier.parent)
        self.seen.append(frontier.node)
        return self._step(frontier.token)


def both(shape: Eagle2Tree, seed: int, budgets: list[Budget]) -> tuple[DraftBatch, DraftBatch]:
    rng = KeyedRng(*torch.zeros((3, BATCH), dtype=torch.int64))
    slow: Any = Eagle2Tree.grow
    return shape.grow(Bigrams(seed), budgets, rng), slow.__wrapped__(shape, Bigrams(seed), budgets, rng)


def same(got: DraftBatch, true: DraftBatch) -> None:
    got.check()
    assert got.lengths_host == tuple(true.length.tolist()) and torch.equal(got.length, true.length)
    used = true.used()
    for name in ("token", "parent", "depth", "order", "source"):
        mine, theirs = getattr(got, name), getattr(true, name)
        assert mine.shape == theirs.shape and torch.equal(mine[used], theirs[used]), name
    assert got.value is not None and true.value is not None and torch.allclose(got.value[used], true.value[used])
    assert (got.kind, got.branching, got.levels) == (true.kind, true.branching, true.levels)


SHAPES = [Eagle2Tree(8, 3, 4), Eagle2Tree(40, 4, 3), Eagle2Tree(5, 1, 6), Eagle2Tree(20, VOCAB + 5, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_trees(shape: Eagle2Tree, seed: int) -> None:
    same(*both(shape, seed, [Budget(100, 9), Budget(4, 9), Budget(100, 2)]))
    same(*both(shape, seed, [Budget(2, 1), Budget(0, 3), Budget(3, 0)]))


def test_where_nobody_may_draft_nothing_is_read() -> None:
    stepper = Bigrams(0)
    assert Eagle2Tree(8, 3, 4).grow(stepper, [Budget(0, 5)] * BATCH, KeyedRng(*torch.zeros((3, BATCH)))).width == 0
    assert not stepper.seen


@pytest.mark.parametrize("seed", range(4))
def test_prices_decide_alike(seed: int) -> None:
    verify = torch.tensor([COSTS.seconds(n + 1) for n in range(9)]).numpy()
    for level in (0.01, 0.1, 0.4):
        same(*both(PricedTree(8, 3, 4, verify=verify, first=2 * level, level=level), seed, [Budget(9, 9)] * BATCH))


def test_of_equal_values_the_first_made_goes_first() -> None:
    """All tokens are equally likely: trees follow from the order of making alone."""
    stepper = Bigrams(0)
    stepper.table = torch.zeros(VOCAB, VOCAB)
    made = Eagle2Tree(5, 2, 3).grow(stepper, [Budget(9, 9)] * BATCH, KeyedRng(*torch.zeros((3, BATCH))))
    assert made.source is not None and made.source[0].tolist() == [0, 1, 2, 3, 4]
