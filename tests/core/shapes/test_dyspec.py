"""DySpec: the spec's vector, draws in order of chance, both forms against each other, and thresholds that adapt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.core.rng.keyed import KeyedRng, Purpose
from foredraft.core.shapes.dyspec import DySpec
from foredraft.core.shapes.dyspec_layers import REMEMBERED, DySpecLayers
from foredraft.errors import UsageError
from foredraft.types import Budget, Distribution, DraftBatch
from tests.kit.growing import PLENTY, TableStepper, paths_of
from tests.kit.ledger import Ledger
from tests.kit.tables import TableModel, dirichlet, fixed

from .test_shapes import MODEL, TOY, grown, rng_for, written


def chances(drafts: DraftBatch, model: TableModel) -> list[float]:
    """v of every node, from its definition: the path's probability and what earlier siblings left over."""
    tree, paths, found = drafts.tree(0), [(), *paths_of(drafts)], []
    for node, parent in enumerate(tree.parent):
        path = paths[parent + 1]
        reached = np.prod([model.next_distribution(path[:i])[token] for i, token in enumerate(path)])
        earlier = [tree.token[i] for i in tree.children(parent) if tree.order[i] < tree.order[node]]
        found.append(float(reached * (1 - model.next_distribution(path)[earlier].sum())))
    return found


@pytest.mark.parametrize("drawn", [False, True])
def test_dyspec_of_the_spec(drawn: bool) -> None:
    """K.2, with the most likely tokens by choice, or as draws of rng that always give the most likely."""
    drafts = DySpec(nodes=7, drawn=drawn).grow(TableStepper(TOY), [PLENTY], Ledger())
    nodes = [("a", 0.6), ("ab", 0.42), ("aba", 0.21), ("b", 0.3), ("ba", 0.15)]
    assert list(written(drafts).items())[:5] == nodes
    assert sorted(list(written(drafts).items())[5:]) == [("abab", 0.147), ("abc", 0.126)]
    keys = sorted(chances(drafts, TOY), reverse=True)
    assert keys == pytest.approx([1.0, 0.6, 0.42, 0.4, 0.3, 0.21, 0.21])


@pytest.mark.parametrize("drawn", [False, True])
def test_dyspec_layers_of_the_spec(drawn: bool) -> None:
    shape = DySpecLayers(nodes=9, threshold=0.21 - 1e-6, drawn=drawn)
    drafts = shape.grow(TableStepper(TOY), [PLENTY], Ledger())
    assert set(written(drafts)) == {"a", "ab", "aba", "b", "ba", "abc", "abab"}


@dataclass(frozen=True)
class DistributionRng:
    """Draws that depend on nothing but the distribution that is drawn from: the same in whatever order."""

    seed: int

    def draw(self, distribution: Distribution, purpose: Purpose, node: torch.Tensor, turn: int = 0) -> torch.Tensor:
        probs = distribution.dense()[0].double()
        key = [self.seed, *(probs / probs.sum() * 1e6).round().long().tolist()]
        return distribution.draw(torch.tensor([np.random.default_rng(key).random()]))


@pytest.mark.parametrize("seed", range(12))
def test_draws_are_made_in_order_of_chance(seed: int) -> None:
    drafts = grown(DySpec(nodes=12, depth=9), seed=seed)
    keys = chances(drafts, MODEL)
    assert keys == pytest.approx(sorted(keys, reverse=True), rel=1e-5)


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_heap_and_threshold_make_the_same_tree(seed: int, drawn: bool) -> None:
    model = dirichlet(5, seed=40 + seed, alpha=0.7)
    rng: Any = DistributionRng(seed)
    heap = DySpec(nodes=11, depth=20, drawn=drawn).grow(TableStepper(model), [PLENTY], rng)
    threshold = min(chances(heap, model)) * (1 - 1e-5)
    shape = DySpecLayers(nodes=20, width=20, depth=20, threshold=threshold, drawn=drawn)
    stepper = TableStepper(model)
    layers = shape.grow(stepper, [PLENTY], rng)
    assert ordered_paths(heap) == ordered_paths(layers)
    assert stepper.calls < int(layers.depth.max()) + 1


def ordered_paths(drafts: DraftBatch) -> set[tuple[tuple[int, ...], int]]:
    return set(zip(paths_of(drafts), drafts.tree(0).order, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_full_level_takes_the_draws_of_largest_chance(seed: int) -> None:
    model, rng = dirichlet(6, seed=seed, alpha=3.0), DistributionRng(seed)
    capped = DySpecLayers(nodes=5, width=9, depth=3, threshold=1e-3)
    whole = DySpecLayers(nodes=99, width=9, depth=1, threshold=1e-3)
    some = capped.grow(TableStepper(model), [PLENTY], rng)  # type: ignore[arg-type]
    every = whole.grow(TableStepper(model), [PLENTY], rng)  # type: ignore[arg-type]
    assert some.lengths() == (5,)
    assert ordered_paths(some) == set(list(zip(paths_of(every), range(9), strict=False))[:5])


def test_only_expanded_nodes_are_read() -> None:
    stepper = TableStepper(MODEL)
    drafts = DySpec(nodes=12, depth=9).grow(stepper, [PLENTY], rng_for(1))
    assert stepper.calls == len(set(drafts.tree(0).parent) - {-1}) < 11


def test_the_threshold_follows_the_size() -> None:
    """Each sequence by itself; a budget that cuts a tree short says nothing about the threshold."""
    model = fixed((0.7, 0.2, 0.1))

    def sizes(adapt: float, ids: list[int], rounds: int = 40) -> list[float]:
        shape, found = DySpecLayers(nodes=16, width=16, depth=12, threshold=0.2, adapt=adapt), []
        for round in range(rounds):
            stepper = TableStepper(model, [()] * len(ids))
            stepper.ids = ids
            rng = KeyedRng(torch.arange(len(ids)), torch.full((len(ids),), round), torch.zeros(len(ids)))
            found.append(shape.grow(stepper, [PLENTY] * len(ids), rng).lengths()[0])
            small = TableStepper(model)
            small.ids = ids[:1]
            shape.grow(small, [Budget(1, 12)], rng.choose(torch.tensor([0])))
        return found

    fixed_size, adapted = np.mean(sizes(0.0, [7])), np.mean(sizes(0.3, [7])[20:])
    assert fixed_size < 10 and abs(adapted - 16) < 3
    assert sizes(0.3, [7]) == sizes(0.3, [7, 8])


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5])
def test_a_threshold_is_a_chance(threshold: float) -> None:
    with pytest.raises(UsageError, match="no chance"):
        DySpecLayers(threshold=threshold)


def test_thresholds_of_old_sequences_are_forgotten() -> None:
    shape = DySpecLayers(nodes=4, depth=2, adapt=0.3)
    for sequence in range(REMEMBERED + 10):
        shape._learn([sequence], [PLENTY], [2])
    assert len(shape._thresholds) == REMEMBERED
    assert shape.threshold_of(5) == 0.25 > shape.threshold_of(500)
