"""Sequoia: the spec's vectors, the table against slower ways to the same trees, and acceptance as it is measured."""

from __future__ import annotations

import heapq
from functools import cache

import numpy as np
import pytest
import torch

from foredraft.core.distributions.tensors import LazyDistributions
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.sequoia import RankCounts, Sequoia
from foredraft.core.shapes.static_tree import StaticTree
from foredraft.core.verify import RULES, BatchCase
from foredraft.errors import UsageError
from foredraft.types import Budget
from tests.kit.growing import PLENTY, TableStepper
from tests.kit.rounds import distribution_at, table_of
from tests.kit.tables import dirichlet, mixed

ACCEPT = (0.6, 0.2, 0.08, 0.04)
UNEVEN = (0.1, 0.45, 0.0, 0.3)  # ranks are draw orders: nothing says that they must fall


def value_of(paths: tuple[tuple[int, ...], ...], accept: tuple[float, ...]) -> float:
    """Positions that a tree commits: the pending token's own, and every node with the chance that it is reached."""
    return 1 + sum(float(np.prod([accept[rank] for rank in path])) for path in paths)


def best_first(accept: tuple[float, ...], size: int) -> float:
    """The reference for falling acceptance: always add the most likely node whose earlier sibling and parent exist."""
    heap, total = [(-accept[0], (0,))], 1.0
    for _ in range(size - 1):
        value, path = heapq.heappop(heap)
        total -= value
        heapq.heappush(heap, (value * accept[0], (*path, 0)))
        if path[-1] + 1 < len(accept):
            beside = (*path[:-1], path[-1] + 1)
            heapq.heappush(heap, (value / accept[path[-1]] * accept[path[-1] + 1], beside))
    return total


@cache
def best_by_trying(accept: tuple[float, ...], size: int, layers: int) -> float:
    """All trees: every way to give `size - 1` nodes to the children of the root, recursively."""
    if layers < 1:
        return -np.inf
    return 1 + _children(accept, size - 1, layers - 1, 0)


@cache
def _children(accept: tuple[float, ...], nodes: int, layers: int, rank: int) -> float:
    if nodes == 0:
        return 0.0
    if rank == len(accept) or layers < 1:
        return -np.inf
    return max(
        accept[rank] * below + _children(accept, nodes - own, layers, rank + 1)
        for own in range(1, nodes + 1)
        if np.isfinite(below := best_by_trying(accept, own, layers))
    )


def test_the_table_of_the_spec() -> None:
    """K.4."""
    table = Sequoia(ACCEPT, 16, 16)
    deep = {1: 1, 2: 1.6, 3: 1.96, 4: 2.176, 6: 2.5056, 8: 2.7456, 12: 3.0474, 16: 3.262}
    flat = {3: 1.96, 4: 2.16, 6: 2.4, 8: 2.528, 16: 2.744}
    assert {m: round(table.tokens(m, 16), 4) for m in deep} == deep
    assert {m: round(table.tokens(m, 3), 4) for m in flat} == flat


def test_the_choice_of_the_spec() -> None:
    """K.4: times in units of 0.1 passes; a token costs 10 without drafts."""
    verify = {1: 10.0, 2: 10.0, 4: 10.0, 8: 12.0, 16: 14.0}
    choice = Sequoia(ACCEPT, 16, 16).best(0.3, verify)
    assert (choice.size, choice.layers) == (16, 5)
    assert choice.seconds == pytest.approx(4.7146, abs=1e-4)
    assert verify[1] / choice.seconds == pytest.approx(2.121, abs=1e-3)
    assert choice.tokens == pytest.approx((4 * 0.3 + 14) / choice.seconds)


def test_costly_passes_make_small_trees() -> None:
    table = Sequoia(ACCEPT, 32, 8)
    steep = table.best(0.3, {m: float(m) for m in range(1, 33)})
    level = table.best(0.3, {m: 10.0 for m in range(1, 33)})
    slow = table.best(9.0, {m: 10.0 for m in range(1, 33)})
    assert steep.size == 1 and level.size == 32
    assert slow.layers < level.layers


@pytest.mark.parametrize("size", [1, 2, 5, 9, 17, 30])
def test_falling_acceptance_is_best_first_growth(size: int) -> None:
    assert Sequoia(ACCEPT, size, size).tokens(size, size) == pytest.approx(best_first(ACCEPT, size))


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
@pytest.mark.parametrize("accept", [ACCEPT, UNEVEN, (0.9,), (0.2, 0.2, 0.2)], ids=str)
def test_the_table_is_the_best_of_all_trees(accept: tuple[float, ...], layers: int) -> None:
    table = Sequoia(accept, 9, 5)
    for size in range(1, 10):
        expected = best_by_trying(accept, size, layers)
        assert table.tokens(size, layers) == pytest.approx(expected)
        if np.isfinite(expected):
            paths = table.paths(size, layers)
            assert len(paths) == size - 1
            assert max(map(len, paths), default=0) < layers
            assert value_of(paths, accept) == pytest.approx(expected)


@pytest.mark.parametrize("accept", [ACCEPT, UNEVEN], ids=str)
def test_its_trees_can_be_drawn(accept: tuple[float, ...]) -> None:
    """A child of rank k comes with all earlier siblings, also where an earlier one is never accepted."""
    shape = StaticTree(Sequoia(accept, 12, 4).paths(12, 4), drawn=True)
    drafts = shape.grow(TableStepper(dirichlet(6, 1)), [PLENTY], KeyedRng(*torch.zeros((3, 1), dtype=torch.int64)))
    drafts.check()
    assert drafts.lengths() == (11,)


@pytest.mark.parametrize("wrong", [((), 4, 4), ((0.9, 0.2), 4, 4), ((-0.1,), 4, 4), ((0.5,), 0, 4), ((0.5,), 4, 0)])
def test_nonsense_is_refused(wrong: tuple[tuple[float, ...], int, int]) -> None:
    with pytest.raises(UsageError, match="acceptance by rank"):
        Sequoia(*wrong)
    with pytest.raises(UsageError, match="no measured size"):
        Sequoia((0.5,), 4, 4).best(1.0, {8: 1.0})


def test_acceptance_is_measured_by_rank() -> None:
    """Many rounds of one node with three draws: the counted chances are the rule's own, and the table believes them."""
    count, target = 20_000, dirichlet(4, seed=2)
    drafter = mixed(target, dirichlet(4, seed=3), 0.5)
    every = torch.arange(count)
    rng = KeyedRng(every * 7919, every % 5, every)
    stepper = TableStepper(drafter, [()] * count)
    drafts = StaticTree((3,), drawn=True).grow(stepper, [Budget(3, 1)] * count, rng)
    p = table_of(target, 1)
    context = torch.zeros((count, 4), dtype=torch.int64)
    context[:, 1:] = drafts.token + 1
    rule = RULES["residual"]
    verdict = rule.verify_batch(BatchCase(drafts, LazyDistributions(lambda row: distribution_at(p, context, row)), rng))
    counts = RankCounts(3)
    counts.observe(drafts, verdict)
    assert counts.visited == count
    assert sum(counts.chances()) == pytest.approx(float((verdict.accepted > 0).float().mean()))
    assert counts.chances()[0] == pytest.approx(float(np.minimum(p[0], drafter.next_distribution(())).sum()), abs=0.015)
    assert Sequoia(counts.chances(), 4, 2).tokens(4, 2) == pytest.approx(1 + sum(counts.chances()))
    few = RankCounts(4)
    few.observe(drafts, verdict)
    assert few.visited == 0 and sum(few.chances()) == 0
