"""Fused drafts against a dictionary of paths: who wrote what first, what it is worth, and what is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from foredraft.core.trees.editing import keep
from foredraft.core.trees.fuse import alike, fuse, own_nodes
from foredraft.core.trees.layout import trees
from foredraft.types import DraftBatch, Kind
from foredraft.types.drafts import chains, empty_drafts

Path = tuple[int, ...]
Tree = tuple[list[int], list[int], list[float]]  # tokens, parents, values


def random_tree(rng: random.Random, words: int = 3) -> Tree:
    """Few words, so that drafters agree now and then; values never rise along a path."""
    tokens: list[int] = []
    parents: list[int] = []
    values: list[float] = []
    known: set[tuple[int, int]] = set()
    for _ in range(rng.randrange(9)):
        parent, token = rng.randrange(-1, len(tokens)), rng.randrange(words)
        if (parent, token) not in known:
            known.add((parent, token))
            values.append(rng.randrange(1, 9) / 8 * (values[parent] if parent >= 0 else 1.0))
            tokens.append(token)
            parents.append(parent)
    return tokens, parents, values


def drafts_of(rows: Sequence[Tree], valued: bool, kind: Kind = Kind.SAMPLED_WITHOUT_REPLACEMENT) -> DraftBatch:
    value = [row[2] for row in rows] if valued else None
    return trees([(tokens, parents) for tokens, parents, _ in rows], kind, value=value)


def paths_of(drafts: DraftBatch, b: int) -> list[Path]:
    tree = drafts.tree(b)
    found: list[Path] = []
    for token, parent in zip(tree.token, tree.parent, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def merged_by_hand(batches: Sequence[DraftBatch], b: int) -> dict[Path, tuple[int, float]]:
    """Path -> (first drafter, largest value), in the order of first sight."""
    known: dict[Path, tuple[int, float]] = {}
    for drafter, batch in enumerate(batches):
        for node, path in enumerate(paths_of(batch, b)):
            value = 0.0 if batch.value is None else float(batch.value[b, node])
            first, best = known.get(path, (drafter, 0.0))
            known[path] = (first, max(best, value))
    return known


def cut_by_hand(known: dict[Path, tuple[int, float]], limit: int) -> set[Path]:
    """The best nodes one at a time, always one whose parent is in; ties by first sight."""
    kept: list[Path] = []
    order = list(known)
    while len(kept) < min(limit, len(order)):
        ready = [path for path in order if path not in kept and (len(path) == 1 or path[:-1] in kept)]
        kept.append(max(ready, key=lambda path: (worth(known, path), -order.index(path))))
    return set(kept)


def worth(known: dict[Path, tuple[int, float]], path: Path) -> float:
    return min(known[path[: i + 1]][1] for i in range(len(path)))


@pytest.mark.parametrize("valued", [(True, True, True), (False, False, False), (False, True, False)], ids=str)
@pytest.mark.parametrize("limit", [100, 7, 3, 0])
def test_fusion_is_the_trie_of_all_paths(limit: int, valued: tuple[bool, ...]) -> None:
    rng = random.Random(limit)
    for _ in range(20):
        batches = [drafts_of([random_tree(rng) for _ in range(3)], v) for v in valued]
        limits = [limit, max(0, limit - 2), limit]
        fused = fuse(batches, limits)
        fused.check()
        assert fused.kind is Kind.CHOSEN and fused.distributions is None and fused.source is None
        assert fused.width == max(fused.lengths())
        assert fused.levels >= int(fused.depth.max()) if fused.width else True
        for b in range(3):
            known = merged_by_hand(batches, b)
            found = paths_of(fused, b)
            assert set(found) == cut_by_hand(known, limits[b]) and len(found) == len(set(found))
            if fused.width and any(valued):
                assert fused.value is not None
                assert fused.value[b, : len(found)].tolist() == pytest.approx([known[path][1] for path in found])


def test_without_values_the_first_drafter_goes_first() -> None:
    fused = fuse([chains([[5, 6, 7]]), chains([[5, 8]])], [4])
    assert paths_of(fused, 0) == [(5,), (5, 6), (5, 6, 7), (5, 8)]
    assert fused.branching == 2 and fused.value is None
    assert paths_of(fuse([chains([[5, 6, 7]]), chains([[5, 8]])], [3]), 0) == [(5,), (5, 6), (5, 6, 7)]


def test_an_unlikely_parent_takes_its_children_with_it() -> None:
    """The second drafter is sure of what it says after a token that nobody believes in."""
    first = trees([([1, 2], [-1, -1])], value=[[0.6, 0.1]])
    second = trees([([2, 3], [-1, 0])], value=[[0.2, 0.9]])
    fused = fuse([first, second], [2])
    assert fused.tree(0).token == [1, 2]
    assert fused.value is not None and fused.value[0].tolist() == pytest.approx([0.6, 0.2])


def test_nothing_to_fuse() -> None:
    assert fuse([empty_drafts(2), chains([[], []])], [4, 4]).width == 0
    alone = fuse([empty_drafts(2), chains([[3], []])], [4, 4])
    assert alone.lengths() == (1, 0) and alone.branching == 1 and int(alone.token[0, 0]) == 3


@pytest.mark.parametrize("seed", range(20))
def test_everyone_finds_its_own_nodes_again(seed: int) -> None:
    """Also after cuts, and in the numbers of a drafter that has renumbered its nodes itself."""
    rng = random.Random(seed)
    batches = [drafts_of([random_tree(rng) for _ in range(2)], True) for _ in range(2)]
    inner = torch.zeros_like(batches[1].token, dtype=torch.bool)
    for b in range(2):
        inner[b, [parent for parent in batches[1].tree(b).parent if parent >= 0]] = True
    original, batches[1] = batches[1], keep(batches[1], inner)
    fused = fuse(batches, [5, 9])
    for batch, numbers in zip(batches, (batches[0], original), strict=True):
        own = own_nodes(fused, batch)
        for b in range(2):
            theirs = paths_of(batch, b)
            for node, path in enumerate(paths_of(fused, b)):
                index = int(own[b, node])
                assert (index >= 0) == (path in theirs)
                if index >= 0:
                    assert paths_of(numbers, b)[index] == path


def test_alike_is_equality_of_paths() -> None:
    rng = random.Random(3)
    for _ in range(20):
        a, b = (drafts_of([random_tree(rng, 2) for _ in range(2)], False) for _ in range(2))
        found = alike(a, b)
        for row in range(2):
            for i, path in enumerate(paths_of(a, row)):
                for j, other in enumerate(paths_of(b, row)):
                    assert bool(found[row, i, j]) == (path == other)
        padding = ~(a.used()[:, :, None] & b.used()[:, None, :])
        assert not bool((found & padding).any())
