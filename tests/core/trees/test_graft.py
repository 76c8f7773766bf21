"""Chains grafted onto trees: equal prefixes once, the better value, and the best nodes with their ancestors."""

from __future__ import annotations

import random

import pytest

from foredraft.core.trees.graft import NOBODY, Graft


def paths(tree: Graft) -> dict[tuple[int, ...], float]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token, tree.parent, strict=True):
        assert parent < len(found), "a parent stands before its children"
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert len(set(found)) == len(found)
    return dict(zip(found, tree.value, strict=True))


def small() -> Graft:
    return Graft([1, 2, 3, 4], [-1, -1, 0, 2], [0.6, 0.3, 0.4, 0.2], [5, 6, 9, 11])


def test_a_chain_runs_along_the_tree_and_goes_on_alone() -> None:
    tree = small()
    tree.add([1, 3, 8, 9], [0.5, 0.45, 0.4, 0.3])
    assert paths(tree) == {(1,): 0.6, (2,): 0.3, (1, 3): 0.45, (1, 3, 4): 0.2, (1, 3, 8): 0.4, (1, 3, 8, 9): 0.3}
    assert tree.source == [5, 6, 9, 11, NOBODY, NOBODY]
    assert tree.falling() == [0.6, 0.45, 0.4, 0.3, 0.3, 0.2]


def test_what_the_tree_thinks_of_a_first_token() -> None:
    assert [small().agrees(token) for token in (1, 2, 3)] == [2, 1, 0]
    assert Graft([], [], [], []).agrees(1) == 0


def test_the_best_keep_their_ancestors_and_their_numbers() -> None:
    tree = small()
    tree.add([7, 8], [0.5, 0.5])
    best = tree.best(4)
    assert paths(best) == {(1,): 0.6, (1, 3): 0.4, (7,): 0.5, (7, 8): 0.5} and best.source == [5, 9, NOBODY, NOBODY]
    assert paths(tree.best(0)) == {} and paths(tree.best(99)) == paths(tree)


@pytest.mark.parametrize("seed", range(30))
def test_random_chains_against_a_dictionary_of_paths(seed: int) -> None:
    rng = random.Random(seed)
    tree, expected = Graft([], [], [], []), dict[tuple[int, ...], float]()
    for _ in range(5):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(6))]
        values = sorted((rng.random() for _ in tokens), reverse=True)
        tree.add(tokens, values)
        for i, value in enumerate(values):
            path = tuple(tokens[: i + 1])
            expected[path] = max(value, expected.get(path, 0.0))
    assert paths(tree) == expected
    for count in range(len(expected) + 1):
        best = paths(tree.best(count))
        assert sorted(best.values(), reverse=True) == tree.falling()[:count]
        assert all(path[:-1] in best for path in best if len(path) > 1)
