"""Shapes on table models: the spec's vectors, budgets, batches, and what every growth owes the verifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foredraft.control.cost import CostModel, Costs, DraftTiming
from foredraft.control.cost_aware_tree import CostAwareTree
from foredraft.control.objective import best_count
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Shape
from foredraft.core.shapes.drawn_tree import IndependentTree, TopThenDrawnTree
from foredraft.core.shapes.dyspec import DySpec
from foredraft.core.shapes.dyspec_layers import DySpecLayers
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.shapes.opt_tree import OptTree, expected_length
from foredraft.core.shapes.sequoia import Sequoia
from foredraft.core.shapes.static_tree import LANTERN_PATHS, StaticTree, rank_paths
from foredraft.core.trees.editing import part, reorder
from foredraft.core.trees.layout import ancestor_mask, heavy_order, interval_mask, intervals
from foredraft.errors import UsageError
from foredraft.types import Budget, DraftBatch, Kind
from tests.kit.growing import PLENTY, TableStepper, by_last_token, paths_of
from tests.kit.tables import TableModel, dirichlet

MODEL = dirichlet(5, seed=3)
CHEAP = CostModel((1, 64), (64,), (1,), (((1.0, 1.5),),))
SEQUOIA = StaticTree(Sequoia((0.6, 0.2, 0.08), 9, 4).paths(9, 4), drawn=True)
GROWTHS: list[Shape] = [
    StaticTree(rank_paths("0 1 00 02 10 000 001"), drawn=False),
    StaticTree(rank_paths("0 1 00 01 10 000 001"), drawn=True),
    StaticTree((3, 2)),
    StaticTree((2, 2, 1), drawn=True),
    SEQUOIA,
    IndependentTree((3, 2)),
    IndependentTree((3, 1, 1)),
    TopThenDrawnTree((3, 2)),
    Eagle2Tree(nodes=8, width=3, depth=4),
    CostAwareTree(nodes=8, width=3, depth=4, costs=Costs(CHEAP), timing=DraftTiming(0.01)),
    OptTree(nodes=8, depth=4, gain=0.05),
    DySpec(nodes=8, depth=4),
    DySpec(nodes=8, depth=4, drawn=False),
    DySpecLayers(nodes=8, width=5, depth=4, threshold=0.05),
    DySpecLayers(nodes=8, width=5, depth=4, threshold=0.05, drawn=False),
]
EVERY = pytest.mark.parametrize("shape", GROWTHS, ids=str)


def rng_for(batch: int, seed: int = 1) -> KeyedRng:
    every = torch.arange(batch)
    return KeyedRng(every * 31 + seed, every + 5, every)


def grown(shape: Shape, model: TableModel = MODEL, budget: Budget = PLENTY, seed: int = 1) -> DraftBatch:
    return shape.grow(TableStepper(model), [budget], rng_for(1, seed))


# --- vectors of the spec --------------------------------------------------------------------------------------------

TOY = by_last_token({(): (0.6, 0.3, 0.1), (0,): (0.1, 0.7, 0.2), (1,): (0.5, 0.2, 0.3), (2,): (0.2, 0.2, 0.6)})


def written(drafts: DraftBatch) -> dict[str, float]:
    return {"".join("abc"[token] for token in path): round(value, 4) for path, value in paths_of(drafts).items()}


@pytest.mark.parametrize(
    ("nodes", "gain", "tree", "calls"),
    [
        (4, 0.2, {"a": 0.6, "ab": 0.42, "b": 0.3, "aba": 0.21}, 2),
        (6, 0.2, {"a": 0.6, "ab": 0.42, "b": 0.3, "aba": 0.21, "ba": 0.15, "abc": 0.126}, 2),
        (6, 0.05, {"a": 0.6, "ab": 0.42, "b": 0.3, "aba": 0.21, "ba": 0.15, "abab": 0.147}, 3),
    ],
)
def test_opt_tree_of_the_spec(nodes: int, gain: float, tree: dict[str, float], calls: int) -> None:
    """K.1; the number of calls says where it stopped."""
    stepper = TableStepper(TOY)
    assert written(OptTree(nodes, 10, gain).grow(stepper, [PLENTY], rng_for(1))) == tree
    assert stepper.calls == calls


def test_expected_length_of_the_spec() -> None:
    """K.1: the estimate after each layer, by brute force over all nodes of the toy up to that depth."""
    for nodes, expected in ((4, (1.0, 1.47, 1.53)), (6, (1.0, 1.69, 1.806, 1.827))):
        level, values = {(): 1.0}, []
        for hoped in expected:
            level = {(*p, t): v * TOY.next_distribution(p)[t] for p, v in level.items() for t in range(3)}
            values += list(level.values())
            mine = expected_length(torch.tensor([values]).log(), torch.tensor([[nodes]]))
            assert float(mine) == pytest.approx(hoped, abs=5e-4)


def test_the_tree_of_lantern() -> None:
    drafts = grown(StaticTree(LANTERN_PATHS), dirichlet(9, seed=1))
    assert len(LANTERN_PATHS) == drafts.lengths()[0] == 25
    assert np.bincount(drafts.depth[0])[1:].tolist() == [4, 8, 8, 3, 2]


# --- what every growth owes -----------------------------------------------------------------------------------------

BUDGETS = [Budget(n, d) for n in (0, 1, 2, 3, 5, 8, 20) for d in (0, 1, 2, 3, 9)]


@EVERY
def test_budgets_are_kept(shape: Shape) -> None:
    largest = 0
    for budget in BUDGETS:
        stepper = TableStepper(MODEL)
        drafts = shape.grow(stepper, [budget], rng_for(1))
        drafts.check()
        length = drafts.lengths()[0]
        assert length <= min(budget.nodes, shape.nodes)
        assert (length > 0) == (budget.chain > 0)
        used = drafts.used()
        assert not length or int(drafts.depth[used].max()) <= min(budget.depth, drafts.levels)
        assert not length or int(drafts.order[used].max()) < drafts.branching
        assert drafts.length.tolist() == [length]
        assert stepper.reads <= shape.reads and stepper.numbered <= shape.numbered
        largest = max(largest, sum(drafts.tree(0).multiplicity))  # draws, of which equal ones are one node
    assert largest == shape.nodes


@EVERY
def test_values_are_products_along_the_path(shape: Shape) -> None:
    for path, value in paths_of(grown(shape)).items():
        chances = [MODEL.next_distribution(path[:i])[token] for i, token in enumerate(path)]
        assert value == pytest.approx(np.prod(chances), rel=1e-5)


@EVERY
def test_distributions_go_with_drawn_nodes_and_with_no_others(shape: Shape) -> None:
    drafts = grown(shape)
    assert (drafts.distributions is None) == (drafts.kind == shape.kind == Kind.CHOSEN)
    if drafts.distributions is None:
        return
    parents = set(drafts.tree(0).parent)
    paths = [(), *paths_of(drafts)]
    for parent in parents:
        distribution = drafts.distributions.at(torch.tensor([parent + 1])).dense()[0]
        assert distribution.tolist() == pytest.approx(MODEL.next_distribution(paths[parent + 1]).tolist(), abs=1e-6)
    assert len(parents) > 2


@EVERY
def test_chosen_siblings_come_in_falling_order(shape: Shape) -> None:
    drafts = grown(shape)
    if shape.kind != Kind.CHOSEN:
        return
    tree, paths = drafts.tree(0), [(), *paths_of(drafts)]
    for parent in set(tree.parent):
        tokens = [tree.token[i] for i in tree.children(parent)]
        distribution = MODEL.next_distribution(paths[parent + 1])
        assert tokens == sorted(tokens, key=lambda token: -distribution[token])


@EVERY
def test_sources_are_the_numbers_by_which_nodes_were_read(shape: Shape) -> None:
    """A drafter finds the K/V of accepted nodes by them."""
    stepper = TableStepper(MODEL)
    drafts = shape.grow(stepper, [PLENTY], rng_for(1))
    paths = list(paths_of(drafts))
    source = list(range(len(paths))) if drafts.source is None else drafts.source[0].tolist()
    read = [node for node, number in enumerate(source[: len(paths)]) if number in stepper.known[0]]
    assert [stepper.known[0][source[node]] for node in read] == [paths[node] for node in read]
    assert set(drafts.tree(0).parent) - {-1} <= set(read)


@EVERY
def test_a_batch_is_each_sequence_alone(shape: Shape) -> None:
    """Different texts, budgets and seeds side by side, one of them with nothing to draft."""
    texts = [(0, 1), (2,), (3, 3, 4), ()]
    budgets = [Budget(8, 3), Budget(4, 9), Budget(6, 2), Budget(3, 0)]
    rng = rng_for(4)
    together = shape.grow(TableStepper(MODEL, texts), budgets, rng)
    together.check()
    assert together.lengths()[3] == 0
    for b in range(3):
        alone = shape.grow(TableStepper(MODEL, [texts[b]]), [budgets[b]], rng.choose(torch.tensor([b])))
        assert together.tree(b) == alone.tree(0)
        assert paths_of(together, b) == pytest.approx(paths_of(alone), rel=1e-6)
        if together.distributions is not None and alone.distributions is not None:
            mine = part(together, [b])
            assert mine.distributions is not None
            for row in {parent + 1 for parent in alone.tree(0).parent}:
                at = torch.tensor([row])
                assert torch.equal(mine.distributions.at(at).dense(), alone.distributions.at(at).dense())


@EVERY
def test_grown_trees_have_interval_masks(shape: Shape) -> None:
    """K.12 on what shapes make."""
    drafts = shape.grow(TableStepper(MODEL, [(0,), (1,), (2,)]), [PLENTY, Budget(3, 2), Budget(5, 9)], rng_for(3))
    heavy = reorder(drafts, heavy_order(drafts.parent, drafts.length, drafts.levels))
    heavy.check()
    mask = interval_mask(*intervals(heavy.parent, heavy.length, heavy.levels))
    assert torch.equal(mask, ancestor_mask(heavy.parent, heavy.length))


@EVERY
def test_a_sure_model_drafts_a_chain(shape: Shape) -> None:
    """At temperature 0 a draw is the argmax and leaves nothing for siblings."""
    stepper = TableStepper(MODEL, temperature=0.0)
    drafts = shape.grow(stepper, [PLENTY], rng_for(1))
    drafts.check()
    if shape.kind == Kind.CHOSEN:
        return
    assert drafts.branching == 1
    text: tuple[int, ...] = ()
    for path in paths_of(drafts):
        text = (*text, int(MODEL.next_distribution(text).argmax()))
        assert path == text
    assert len(text) >= 2


@EVERY
def test_tensors_are_made_where_the_stepper_is(shape: Shape) -> None:
    """With a default device that holds no data, whatever is made elsewhere than on the stepper's device fails."""
    budgets = [Budget(8, 3), Budget(4, 9)]
    steppers = [TableStepper(MODEL, [(0,), (1,)]) for _ in range(2)]
    usual = shape.grow(steppers[0], budgets, rng_for(2))
    rng = rng_for(2)
    with torch.device("meta"):
        drafts = shape.grow(steppers[1], budgets, rng)
    assert [drafts.tree(b) for b in range(2)] == [usual.tree(b) for b in range(2)]


@EVERY
def test_a_broken_drafter_breaks_nothing(shape: Shape) -> None:
    """Distributions of NaN after the root, or further down, in one sequence of two or in both."""
    for who, depth in (((1,), 1), ((1,), 2), ((0, 1), 1)):

        def compute(prefix: tuple[int, ...], who: tuple[int, ...] = who, depth: int = depth) -> np.ndarray:
            broken = prefix[0] in who and len(prefix) >= depth
            return np.full(5, np.nan) if broken else MODEL.next_distribution(prefix)

        drafts = shape.grow(TableStepper(TableModel(5, compute), [(0,), (1,)]), [PLENTY] * 2, rng_for(2))
        drafts.check()
        assert drafts.lengths() == tuple(drafts.length.tolist())
        if who == (1,):
            well = shape.grow(TableStepper(MODEL, [(0,)]), [PLENTY], rng_for(1))
            assert drafts.tree(0) == well.tree(0)


def test_chosen_trees_end_where_the_vocabulary_does() -> None:
    small = dirichlet(2, seed=1)
    for shape in (
        StaticTree(rank_paths("0 1 2 00 01 02 20 000")),
        StaticTree((3, 3)),
        OptTree(9, 3),
        DySpec(9, 3, False),
    ):
        drafts = grown(shape, small)
        drafts.check()
        assert drafts.branching == 2
        assert all(token < 2 for path in paths_of(drafts) for token in path)


# --- fixed layouts --------------------------------------------------------------------------------------------------


def test_rank_paths_say_which_token_stands_where() -> None:
    drafts = grown(StaticTree(rank_paths("0 2 00 03 031")))
    ranked = {(): (0, 2), (0,): (0, 3), (0, 3): (1,)}
    expected = {()}
    for path, ranks in ranked.items():
        text: tuple[int, ...] = ()
        for rank in path:
            text = (*text, int(np.argsort(-MODEL.next_distribution(text))[rank]))
        expected |= {(*text, int(np.argsort(-MODEL.next_distribution(text))[rank])) for rank in ranks}
    assert set(paths_of(drafts)) == expected - {()}


def test_a_rank_tree_of_counts_is_a_static_tree() -> None:
    for drawn in (False, True):
        paths = rank_paths("0 1 00 01 10 11 000 010 100 110")
        assert grown(StaticTree(paths, drawn)).tree(0) == grown(StaticTree((2, 2, 1), drawn)).tree(0)


def test_a_drawn_tree_has_no_gaps() -> None:
    with pytest.raises(UsageError, match="leave out a rank"):
        StaticTree(rank_paths("0 2"), drawn=True)
    with pytest.raises(ValueError, match="without its parent"):
        StaticTree(rank_paths("0 10"), drawn=True)


def test_leaves_are_not_read() -> None:
    stepper = TableStepper(dirichlet(9, seed=1))
    shape = StaticTree(LANTERN_PATHS)
    shape.grow(stepper, [PLENTY], rng_for(1))
    assert (stepper.reads, stepper.calls) == (shape.reads, 4) == (4 + 4 + 1 + 1, 4)
    stepper = TableStepper(dirichlet(9, seed=1))
    shape.grow(stepper, [Budget(6, 9)], rng_for(1))
    assert (stepper.reads, stepper.calls) == (1, 1)  # 00 and 01 are all that is left of the second level


# --- cost -----------------------------------------------------------------------------------------------------------


class _Passes(TorchDispatchMode):
    """Counts operations whose result is as large as a distribution or larger."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.count = vocab, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = out if isinstance(out, tuple | list) else (out,)
        fresh = not func.is_view
        self.count += sum(fresh and isinstance(x, torch.Tensor) and x.numel() >= self.vocab for x in results)
        return out


WIDE: list[tuple[Shape, int]] = [
    (StaticTree((4, 2, 2)), 2),  # logits to probabilities; the stepper makes the logits
    (StaticTree((4, 2, 2), drawn=True), 9),
    (OptTree(nodes=28, depth=4, gain=0.0), 2),
    (DySpec(nodes=28, depth=4), 9),
    (DySpecLayers(nodes=28, depth=4, threshold=0.005), 9),
    (DySpecLayers(nodes=28, depth=4, threshold=0.005, drawn=False), 2),
]


@pytest.mark.parametrize(("shape", "most"), WIDE, ids=str)
def test_the_vocabulary_is_passed_over_per_call_and_not_per_node(shape: Shape, most: int) -> None:
    vocab = 4000
    stepper = TableStepper(dirichlet(vocab, 1, alpha=0.02))
    with _Passes(vocab) as passes:
        drafts = shape.grow(stepper, [PLENTY], rng_for(1))
    assert drafts.lengths()[0] == 28
    assert passes.count <= most * (stepper.calls + 1)


@pytest.mark.parametrize("row", [0.0, 0.02, 0.1, 0.3, 2.0])
def test_a_cost_tree_holds_the_nodes_that_pay(row: float) -> None:
    """Against the value tree of the same depth, cut by brute force."""
    costs = CostModel((1, 64), (64,), (1,), (((1.0, 1.0 + 63 * row),),))
    whole = grown(Eagle2Tree(nodes=12, width=3, depth=3))
    gains = sorted(paths_of(whole).values(), reverse=True)
    count, _ = best_count(gains, lambda n: costs.seconds(n + 1))
    own = paths_of(grown(CostAwareTree(nodes=12, width=3, depth=3, costs=Costs(costs), timing=DraftTiming())))
    assert sorted(own.values(), reverse=True) == pytest.approx(gains[:count])


def test_a_cost_tree_reads_no_level_that_does_not_pay() -> None:
    calls = []
    for level in (0.0, 0.1, 100.0):
        stepper = TableStepper(MODEL)
        CostAwareTree(nodes=12, width=3, depth=6, costs=Costs(CHEAP), timing=DraftTiming(level)).grow(
            stepper, [PLENTY], rng_for(1)
        )
        calls.append(stepper.calls)
    assert 5 >= calls[0] > calls[1] > calls[2] == 0
