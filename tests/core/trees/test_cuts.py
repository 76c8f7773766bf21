"""Trees that a shared budget has cut, under every rule that may see them: the distribution of the text, enumerated.

What is cut is CHOSEN and what is not stays drawn, and whether a tree is cut depends on its tokens. So a rule must be
blind to the kind: exact for each of both is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import pytest

from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain, Shape, Stepper
from foredraft.core.shapes.drawn_tree import IndependentTree, TopThenDrawnTree
from foredraft.core.shapes.dyspec_layers import DySpecLayers
from foredraft.core.shapes.static_tree import StaticTree
from foredraft.core.trees.tetris import can_cut, cut_to
from foredraft.core.verify import RULES, Rule
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.engine.method_group import MethodGroup
from foredraft.types import Budget, DraftBatch, Kind, Topology
from tests.core.shapes.test_exactness import legal
from tests.core.shapes.test_shapes import grown
from tests.engine.runs import finish, request
from tests.kit.exactness import distortion
from tests.kit.executor import TableExecutor
from tests.kit.growing import grown_method
from tests.kit.tables import at_temperature_zero, dirichlet, mixed

TARGET = dirichlet(3, seed=11)
OTHER = dirichlet(3, seed=13, support=2)


@dataclass(frozen=True)
class Cut:
    """A shape whose trees are cut to a capacity, whatever the rule."""

    inner: Shape
    capacity: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        return cut_to(self.inner.grow(stepper, budgets, rng), self.capacity)


TREES: dict[str, tuple[Shape, int]] = {
    "DySpec": (DySpecLayers(nodes=9, width=3, depth=2, threshold=0.25), 4),  # some of its trees are cut, others not
    "static": (StaticTree((2, 1), drawn=True), 2),
    "independent": (IndependentTree((2, 1)), 2),
    "top then drawn": (TopThenDrawnTree((2, 1)), 2),
    "chosen": (StaticTree((2, 1)), 2),
}
PAIRS = [(name, rule) for name, (shape, _) in TREES.items() for rule in RULES.values() if legal(rule, shape)]


def cut_distortion(tree: str, rule: Rule) -> float:
    (shape, capacity), target = TREES[tree], at_temperature_zero(TARGET) if rule.greedy_only else TARGET
    return distortion(grown_method(Cut(shape, capacity), rule, target, OTHER), target, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tree", "rule"), PAIRS, ids=lambda value: str(getattr(value, "name", value)))
def test_a_rule_that_lets_trees_be_cut_stays_exact(tree: str, rule: Rule) -> None:
    if can_cut(grown(TREES[tree][0]), rule):
        assert cut_distortion(tree, rule) < 1e-6


def test_rules_that_are_exact_for_both_kinds_are_biased_by_cuts() -> None:
    """The reason for `blind`: these are exact for every kind, or for drawn and chosen trees."""
    for name in ("one-branch", "residual"):
        assert RULES[name].exact_with(frozenset({Kind.CHOSEN, Kind.SAMPLED_ADAPTIVELY}), Topology.TREE)
        assert not can_cut(grown(TREES["DySpec"][0]), RULES[name])
        assert cut_distortion("DySpec", RULES[name]) > 1e-3


def test_blind_rules_are_those_that_are_said_to_be() -> None:
    assert {name for name, rule in RULES.items() if rule.blind} == {"sample-and-match", "greedy", "one-hot"}


# --- two sequences in one engine --------------------------------------------------------------------------------------

COIN = dirichlet(2, seed=3)
COIN_DRAFTER = mixed(COIN, dirichlet(2, seed=4), 0.5)


def joint_of_two(rule: Rule, shape: Shape, capacity: int | None) -> np.ndarray:
    """[V, V, V, V] the first two tokens of two requests that run side by side, drafts cut to a shared capacity."""
    found = np.zeros((2,) * 4)

    def select(groups: list[MethodGroup]) -> None:
        for group in groups:
            if capacity is not None and group.drafting and can_cut(group.drafts, group.method.rule):
                group.drafts = cut_to(group.drafts, capacity)

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        engine = Engine(TableExecutor(COIN, max_slots=2), lambda sequences: rng)  # type: ignore[arg-type]
        engine.scheduler.select = select  # type: ignore[method-assign]
        method = Method("m", rule, ModelDrafter(TableExecutor(COIN_DRAFTER, max_slots=2), shape))
        requests = [request([i], method, i, max_new_tokens=2, temperature=1.0) for i in range(2)]
        return tuple(token for text in finish(engine, *requests) for token in text)

    for weight, text in outcomes(run):
        found[text] += weight
    return found


@pytest.mark.parametrize("shape", [Chain(1), StaticTree((2,), drawn=True)], ids=str)
@pytest.mark.parametrize(
    ("capacity", "rule"),
    [(None, "residual"), (1, "sample-and-match")]
    + [pytest.param(c, r, marks=pytest.mark.slow) for c in (None, 1, 2) for r in ("residual", "one-hot")],
)
def test_two_requests_in_a_batch_write_independently(shape: Shape, capacity: int | None, rule: str) -> None:
    """The joint distribution of both texts is the product of what each would be alone, cut drafts included."""
    expected = np.einsum("ab,cd->abcd", COIN.joint(2, (0,)), COIN.joint(2, (1,)))
    assert np.abs(joint_of_two(RULES[rule], shape, capacity) - expected).max() < 1e-6
