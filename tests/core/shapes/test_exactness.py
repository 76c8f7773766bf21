"""Every shape with every rule that may verify it: the distribution of the text by enumeration, and wrong shapes.

The rule sees the distributions that the shape handed over, so a distribution after the wrong node would show as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import log
from typing import Any

import pytest

from foredraft.control.calibration import Calibration, PendingDrafts
from foredraft.control.cost import CostModel, Costs, DraftTiming
from foredraft.control.cost_aware_tree import CostAwareTree
from foredraft.core.shapes import dyspec
from foredraft.core.shapes.base import Shape
from foredraft.core.shapes.drawn_tree import IndependentTree, TopThenDrawnTree
from foredraft.core.shapes.dyspec import DySpec
from foredraft.core.shapes.dyspec_layers import DySpecLayers
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.shapes.fan import Fan
from foredraft.core.shapes.opt_tree import OptTree
from foredraft.core.shapes.sequoia import Sequoia
from foredraft.core.shapes.static_tree import StaticTree, rank_paths
from foredraft.core.trees.builder import TreeBuilder
from foredraft.core.trees.candidates import Candidates
from foredraft.core.verify import RULES, Rule, check_pair, default_rule
from foredraft.errors import UsageError
from foredraft.types import Budget, Kind
from tests.kit.exactness import distortion
from tests.kit.growing import Growths, grown_method
from tests.kit.tables import TableModel, at_temperature_zero, dirichlet, mixed

PRICED = CostModel((1, 8), (64,), (1,), (((1.0, 1.7),),))  # some nodes and levels pay, others do not


def taught() -> Calibration:
    """A calibration that has seen a drafter which is surer than it should be."""
    calibration = Calibration()
    for said in (0.2, 0.5, 0.8):
        for right in (0, 1, 0, 0) * 5:
            calibration.pending[0] = PendingDrafts([1], [-1], [log(said)], [1])
            calibration.observe(0, [right])
    return calibration


GROWTHS: dict[str, Shape] = {
    "drawn ranks": StaticTree(rank_paths("0 1 00"), drawn=True),
    "Sequoia": StaticTree(Sequoia((0.5, 0.3), 5, 3).paths(5, 3), drawn=True),
    "DySpec": DySpec(nodes=4, depth=3),
    "DySpec in layers": DySpecLayers(nodes=4, width=2, depth=3, threshold=0.25),
    "independent draws": IndependentTree((3,)),
    "independent sequences": IndependentTree((2, 1)),
    "top then drawn": TopThenDrawnTree((2, 2)),
    "chosen ranks": StaticTree(rank_paths("0 2 00 02 000")),
    "OPT-Tree": OptTree(nodes=4, depth=3, gain=0.1),
    "EAGLE-2": Eagle2Tree(nodes=4, width=2, depth=3),
    "EAGLE-2 at a price": CostAwareTree(nodes=4, width=2, depth=3, costs=Costs(PRICED), timing=DraftTiming(0.05)),
    "EAGLE-2 at a price, calibrated": CostAwareTree(
        nodes=4, width=2, depth=3, costs=Costs(PRICED), timing=DraftTiming(0.05), calibration=taught()
    ),
    "fan that stops": Fan(width=2, depth=3, decide=lambda step: step.dense().amax(dim=2), threshold=0.55),
    "chosen DySpec": DySpec(nodes=4, depth=3, drawn=False),
    "chosen DySpec in layers": DySpecLayers(nodes=4, width=2, depth=3, threshold=0.2, drawn=False),
}
KNOWN = Growths()
TARGET = dirichlet(3, seed=11)
NEAR = mixed(TARGET, dirichlet(3, seed=12), 0.5)
OTHER = dirichlet(3, seed=13, support=2)  # a token of the target that is never drafted
LENGTH = 3
TOLERANCE = 1e-6  # draft distributions are float32


# DySpec draws a sibling or not by what the earlier ones were. Rules that test siblings one after another do not mind;
# those that look at all of them at once take their number for given, and are biased.
ALL_AT_ONCE, IN_TURN = ("otm", "top-then-sampled"), ("DySpec", "DySpec in layers")


def legal(rule: Rule, shape: Shape) -> bool:
    try:
        check_pair(rule, frozenset({shape.kind}), shape.topology)
    except UsageError:
        return False
    return not rule.lossy


# A fan of three layers has many outcomes: one rule by default, all in the slow run.
SLOW = pytest.mark.slow
PAIRS = [
    pytest.param(name, rule, marks=[SLOW] if name == "fan that stops" and rule.name != "residual" else [])
    for name, shape in GROWTHS.items()
    for rule in RULES.values()
    if legal(rule, shape)
]


def name_of(value: object) -> str:
    if isinstance(value, TableModel):
        return "near" if value is NEAR else "other"
    return str(getattr(value, "name", value))


def near(name: str, rule: Rule) -> bool:
    """Whether a drafter that may draw every token is enumerated by default: for the rule that the shape gets if nobody
    names one. Several independent draws of every token have a slow test of their own."""
    kind = GROWTHS[name].kind
    return kind is Kind.CHOSEN or rule is default_rule(frozenset({kind}), GROWTHS[name].topology)


ALL = [
    pytest.param(
        *pair.values, drafter, marks=[*pair.marks, *([] if drafter is OTHER or near(*pair.values) else [SLOW])]
    )
    for pair in PAIRS
    for drafter in (OTHER, NEAR)
    if drafter is OTHER or GROWTHS[pair.values[0]].kind is not Kind.SAMPLED_IID
]


@pytest.mark.parametrize(("growth", "rule", "drafter"), ALL, ids=name_of)
def test_texts_follow_the_target(growth: str, rule: Rule, drafter: TableModel) -> None:
    target = at_temperature_zero(TARGET) if rule.greedy_only else TARGET
    method = KNOWN.method(GROWTHS[growth], rule, target, drafter)
    assert distortion(method, target, LENGTH) < TOLERANCE


@pytest.mark.parametrize(("growth", "rule"), PAIRS, ids=name_of)
def test_readable_forms_agree(growth: str, rule: Rule) -> None:
    target = at_temperature_zero(TARGET) if rule.greedy_only else TARGET
    method = KNOWN.method(GROWTHS[growth], rule, target, OTHER, batched=False)
    assert distortion(method, target, LENGTH) < TOLERANCE


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize(("growth", "rule"), PAIRS, ids=name_of)
def test_greedy_is_the_limit(growth: str, rule: Rule, temperature: float) -> None:
    """A greedy target, drafted for by draws at temperature 0, which are argmaxes, or at DySpec's 0.6."""
    target = at_temperature_zero(TARGET)
    method = KNOWN.method(GROWTHS[growth], rule, target, NEAR, temperature=temperature)
    assert distortion(method, target, LENGTH) < TOLERANCE


@pytest.mark.parametrize("budget", [Budget(2, 9), Budget(3, 1), Budget(3, 2)], ids=str)
@pytest.mark.parametrize("growth", [name for name, shape in GROWTHS.items() if shape.kind is not Kind.CHOSEN])
def test_budgets_do_not_bias(growth: str, budget: Budget) -> None:
    shape = GROWTHS[growth]
    rule = default_rule(frozenset({shape.kind}), shape.topology)
    drafter = OTHER if shape.kind is Kind.SAMPLED_IID else NEAR
    method = grown_method(shape, rule, TARGET, drafter, budget=budget)
    assert distortion(method, TARGET, LENGTH) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("branching", [(3,), (2, 1), (3, 1)], ids=str)
@pytest.mark.parametrize("rule", ["residual-iid", "k-seq", "canonical", "residual", "otm"])
def test_independent_draws_of_every_token(rule: str, branching: tuple[int, ...]) -> None:
    method = grown_method(IndependentTree(branching), RULES[rule], TARGET, NEAR)
    assert distortion(method, TARGET, LENGTH) < TOLERANCE


@pytest.mark.parametrize("rule", ALL_AT_ONCE)
@pytest.mark.parametrize("growth", IN_TURN)
def test_rules_that_look_at_all_siblings_at_once_are_biased_on_draws_in_turn(growth: str, rule: str) -> None:
    assert not legal(RULES[rule], GROWTHS[growth])
    assert distortion(KNOWN.method(GROWTHS[growth], RULES[rule], TARGET, NEAR), TARGET, LENGTH) > 0.05
    assert sequoia_distortion(rule) < TOLERANCE


@cache
def sequoia_distortion(rule: str) -> float:
    return distortion(KNOWN.method(GROWTHS["Sequoia"], RULES[rule], TARGET, NEAR), TARGET, LENGTH)


def after_the_draw(draw: Callable[..., Candidates]) -> Callable[..., Candidates]:
    """The mistake: v * q(token) in place of v, so that whether a token is kept depends on what it is."""

    def wrong(*args: Any) -> Candidates:
        found = draw(*args)
        return replace(found, left=found.score.exp())

    return wrong


@pytest.mark.parametrize("growth", IN_TURN)
def test_deciding_after_the_draw_is_biased(growth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dyspec, "drawn_candidates", after_the_draw(dyspec.drawn_candidates))
    shape = GROWTHS[growth]
    method = grown_method(shape, RULES["residual"], TARGET, NEAR)
    assert distortion(method, TARGET, LENGTH) > 1e-3
    chosen = grown_method(shape, RULES["sample-and-match"], TARGET, NEAR)  # right for any tree, also for this one
    assert distortion(chosen, TARGET, LENGTH) < TOLERANCE


@pytest.mark.parametrize("growth", ["DySpec", "DySpec in layers", "drawn ranks"])
def test_a_distribution_at_the_wrong_node_shows(growth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distributions = TreeBuilder._distributions
    monkeypatch.setattr(TreeBuilder, "_distributions", lambda self, chosen: distributions(self, chosen.flip(1)))
    method = grown_method(GROWTHS[growth], RULES["residual"], TARGET, NEAR)
    assert distortion(method, TARGET, LENGTH) > 1e-3
