"""Tree utilities against one-node-at-a-time definitions on random trees (K.12 of the structure spec among them)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.random import Generator

from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.trees.editing import cut, reorder
from foredraft.core.trees.layout import (
    ancestor_mask,
    depths_of,
    heavy_order,
    interval_mask,
    intervals,
    sibling_ranks,
    static_tree,
    subtree_sizes,
    trees,
    trie,
)
from foredraft.types import DraftBatch, Kind, Topology
from foredraft.types.drafts import chains, empty_drafts

SEEDS = pytest.mark.parametrize("seed", range(8))


def random_parents(rng: Generator, nodes: int) -> list[int]:
    """Any topological order: bushy or thin, by chance."""
    reach = int(rng.integers(1, nodes + 2))
    return [int(rng.integers(max(-1, i - reach), i)) for i in range(nodes)]


def random_batch(seed: int, largest: int = 40) -> DraftBatch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, largest, size=int(rng.integers(1, 6)))
    rows = [random_parents(rng, int(n)) for n in lengths]
    order = [shuffled_ranks(rng, parents) for parents in rows]
    distributions = TableDistributions(torch.from_numpy(rng.dirichlet(np.ones(7), (len(rows), max(lengths) + 1))))
    drafts = [(rng.permutation(1000)[: len(parents)].tolist(), parents) for parents in rows]
    value = [rng.random(len(parents)).tolist() for parents in rows]
    return trees(drafts, Kind.SAMPLED_IID, order=order, multiplicity=order, value=value, distributions=distributions)


def shuffled_ranks(rng: Generator, parents: list[int]) -> list[int]:
    ranks = np.zeros(len(parents), dtype=int)
    for parent in set(parents):
        siblings = [i for i, above in enumerate(parents) if above == parent]
        ranks[siblings] = rng.permutation(len(siblings))
    return ranks.tolist()


def ancestors(parents: list[int], node: int) -> set[int]:
    return set() if node < 0 else {node} | ancestors(parents, parents[node])


def slow_mask(drafts: DraftBatch) -> torch.Tensor:
    mask = torch.zeros((drafts.batch, drafts.width, drafts.width), dtype=torch.bool)
    for b in range(drafts.batch):
        tree = drafts.tree(b)
        for i in range(drafts.width):
            mask[b, i, sorted(ancestors(tree.parent, i) if i < len(tree.token) else {i})] = True
    return mask


@SEEDS
def test_random_trees_are_trees(seed: int) -> None:
    drafts = random_batch(seed)
    drafts.check()
    assert drafts.lengths() == tuple(drafts.length.tolist())
    assert drafts.levels == int(drafts.depth.max())
    assert drafts.branching == int(drafts.order.max()) + 1


@SEEDS
def test_child_table_agrees_with_children(seed: int) -> None:
    drafts = random_batch(seed)
    for block in (drafts, cut(drafts, [n // 2 for n in drafts.lengths()])):
        table = block.child_table()
        assert table.shape == (block.batch, block.width + 1, block.branching)
        for b in range(block.batch):
            tree = block.tree(b)
            for row in range(block.width + 1):
                found = [node for node in table[b, row].tolist() if node >= 0]
                assert found == (tree.children(row - 1) if row <= len(tree.token) else [])


@SEEDS
def test_ancestor_mask_walks_up_every_path(seed: int) -> None:
    drafts = random_batch(seed)
    expected = slow_mask(drafts)
    for levels in (drafts.levels, drafts.levels + 3, None):
        assert torch.equal(ancestor_mask(drafts.parent, drafts.length, levels), expected)


def test_ancestor_mask_needs_enough_levels() -> None:
    chain = chains([[1, 2, 3, 4, 5]])
    assert not torch.equal(ancestor_mask(chain.parent, levels=2), ancestor_mask(chain.parent, levels=5))


def test_padding_sees_only_itself_even_with_parents() -> None:
    chain = chains([[1, 2, 3, 4], [5]])  # padded chains carry parents on padding too
    mask = ancestor_mask(chain.parent, chain.length, chain.levels)
    assert torch.equal(mask[0], torch.ones(4, 4, dtype=torch.bool).tril())
    assert torch.equal(mask[1], torch.eye(4, dtype=torch.bool))


@SEEDS
def test_interval_mask_is_the_ancestor_mask_in_heavy_order(seed: int) -> None:
    drafts = random_batch(seed)
    heavy = reorder(drafts, heavy_order(drafts.parent, drafts.length, drafts.levels))
    heavy.check()
    mask = interval_mask(*intervals(heavy.parent, heavy.length, heavy.levels))
    assert torch.equal(mask, slow_mask(heavy))


@SEEDS
def test_heavy_order_is_depth_first_with_larger_subtrees_first(seed: int) -> None:
    drafts = random_batch(seed)
    order = heavy_order(drafts.parent, drafts.length)
    size = subtree_sizes(drafts.parent, drafts.length)
    for b, length in enumerate(drafts.lengths()):
        parents = drafts.parent[b].tolist()
        expected: list[int] = []

        def visit(node: int, parents: list[int] = parents, expected: list[int] = expected, b: int = b) -> None:
            if node >= 0:
                expected.append(node)
            below = [i for i in range(drafts.lengths()[b]) if parents[i] == node]
            for child in sorted(below, key=lambda i: (-int(size[b, i]), i)):
                visit(child)

        visit(-1)
        assert order[b, :length].tolist() == expected
        assert order[b, length:].tolist() == list(range(length, drafts.width))


def test_intervals_do_not_hold_in_other_orders() -> None:
    breadth_first = trees([([1, 2, 3, 4], [-1, -1, 0, 1])])
    mask = interval_mask(*intervals(breadth_first.parent))
    assert not torch.equal(mask, ancestor_mask(breadth_first.parent))


@SEEDS
def test_reordering_keeps_the_tree(seed: int) -> None:
    drafts = random_batch(seed)
    order = heavy_order(drafts.parent, drafts.length)
    moved = reorder(drafts, order)
    assert drafts.distributions is not None and moved.distributions is not None
    for b in range(drafts.batch):
        assert _paths(drafts, b) == _paths(moved, b)
    for place in range(drafts.width):
        row = torch.full((drafts.batch,), place + 1)
        assert torch.equal(moved.distributions.at(row).dense(), drafts.distributions.at(order[:, place] + 1).dense())
    root = torch.zeros(drafts.batch, dtype=torch.int64)
    assert torch.equal(moved.distributions.at(root).dense(), drafts.distributions.at(root).dense())


def _paths(drafts: DraftBatch, b: int) -> dict[tuple[int, ...], tuple[float, ...]]:
    """Token path of every node -> what is known of the node."""
    tree = drafts.tree(b)
    assert drafts.value is not None and drafts.multiplicity is not None
    known: dict[int, tuple[int, ...]] = {-1: ()}
    found = {}
    for i, token in enumerate(tree.token):
        known[i] = (*known[tree.parent[i]], token)
        columns = (drafts.value, drafts.multiplicity, drafts.order, drafts.depth)
        found[known[i]] = tuple(float(column[b, i]) for column in columns)
    return found


def test_trees_fill_in_what_follows_from_the_parents() -> None:
    drafts = trees([([5, 6, 7], [-1, 0, 0]), ([8], [-1]), ([], [])])
    assert drafts.depth.tolist() == [[1, 2, 2], [1, 0, 0], [0, 0, 0]]
    assert drafts.order.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert (drafts.branching, drafts.levels, drafts.topology) == (2, 2, Topology.TREE)
    assert drafts.lengths_host == (3, 1, 0)
    assert drafts.parent.tolist() == [[-1, 0, 0], [-1, -1, -1], [-1, -1, -1]]


def test_trees_of_nothing_are_empty_drafts() -> None:
    nothing, empty = trees([([], [])] * 3), empty_drafts(3)
    assert nothing.token.shape == empty.token.shape == (3, 0)
    assert (nothing.branching, nothing.levels, nothing.lengths()) == (empty.branching, empty.levels, empty.lengths())
    assert nothing.child_table().tolist() == [[[-1]]] * 3
    assert ancestor_mask(nothing.parent).shape == (3, 0, 0)
    assert heavy_order(nothing.parent).shape == (3, 0)


def test_trees_of_chains_are_chains() -> None:
    ours, theirs = trees([([1, 2, 3], [-1, 0, 1]), ([4], [-1])]), chains([[1, 2, 3], [4]])
    for b in range(2):
        assert ours.tree(b) == theirs.tree(b)
    assert ours.topology is theirs.topology is Topology.CHAIN
    assert ours.levels == theirs.levels


@pytest.mark.parametrize("parents", [[0], [-1, 2, 0], [-2], [-1, 1]])
def test_parents_must_come_first(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="not an earlier node"):
        trees([(list(range(len(parents))), parents)])


def test_columns_must_fit_the_tokens() -> None:
    with pytest.raises(ValueError, match="entries"):
        trees([([1, 2], [-1])])
    with pytest.raises(ValueError, match="entries"):
        trees([([1, 2], [-1, 0])], multiplicity=[[1]])


def test_static_tree_from_branching_counts() -> None:
    shape = static_tree((4, 2, 2))
    assert len(shape.parent) == 4 + 8 + 16
    assert shape.parent[:4] == [-1] * 4
    assert all(shape.parent[4 + 2 * m + j] == m for m in range(4) for j in range(2))
    assert all(shape.parent[12 + 2 * m + j] == 4 + m for m in range(8) for j in range(2))
    assert shape.rank == sibling_ranks(shape.parent)
    assert depths_of(shape.parent) == [1] * 4 + [2] * 8 + [3] * 16


def test_static_tree_from_rank_paths() -> None:
    shape = static_tree([[0, 0, 0], [0], [1], [0, 0], [0, 2]])
    assert shape == ([-1, -1, 0, 0, 2], [0, 1, 0, 2, 0])
    assert static_tree([[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]) == static_tree((2, 2))
    assert static_tree(()) == ([], [])


@pytest.mark.parametrize("paths", [[[0], [1, 0]], [[]], [[0], [0]]])
def test_static_trees_must_be_trees(paths: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="static tree"):
        static_tree(paths)


def test_trie_merges_common_beginnings() -> None:
    tokens, parents = trie([[1, 2, 3], [1, 4], [5], [1, 2, 6], []])
    assert tokens == [1, 2, 3, 4, 5, 6]
    assert parents == [-1, 0, 1, 0, -1, 1]
    assert trie([]) == ([], [])


@SEEDS
def test_trie_holds_exactly_the_prefixes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    paths = [rng.integers(0, 3, size=int(rng.integers(0, 6))).tolist() for _ in range(12)]
    tokens, parents = trie(paths)
    drafts = trees([(tokens, parents)])
    drafts.check()
    known: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        known.append((*(known[parent] if parent >= 0 else ()), token))
    assert set(known) == {tuple(path[: k + 1]) for path in paths for k in range(len(path))}
    assert len(known) == len(set(known))
