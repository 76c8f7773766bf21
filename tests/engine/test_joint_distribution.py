"""The distribution of whole texts: every method, run by the engine on table models, with an rng that enumerates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.shapes.base import Chain, Shape, StaticTree
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.shapes.stops import Confidence, PathConfidence
from foredraft.core.verify import RULES, default_rule
from foredraft.draft import Drafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Method
from foredraft.types import Kind
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .runs import one

TOKENS = 3
TARGET = dirichlet(3, seed=1)
NEAR = mixed(TARGET, dirichlet(3, seed=2), 0.5)
NARROW = dirichlet(3, seed=3, support=2)  # two possible tokens at a place keep the enumeration short
TWO = dirichlet(3, seed=5, support=2)


def model_drafter(shape: Shape, model: TableModel = NEAR) -> Callable[[], Drafter]:
    return lambda: ModelDrafter(TableExecutor(model), shape)


DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "plain": lambda: None,
    "chain of 1": model_drafter(Chain(1)),
    "chain of 2": model_drafter(Chain(2), NARROW),
    "drawn tree": model_drafter(StaticTree((2, 1), drawn=True), NARROW),
    "chosen tree": model_drafter(StaticTree((2, 2))),
    "chain that stops": model_drafter(Chain(3, Confidence(0.6)), NARROW),
    "chain that stops by its path": model_drafter(Chain(3, PathConfidence(0.3)), NARROW),
    "value tree": model_drafter(Eagle2Tree(nodes=4, width=2, depth=3)),
    "lookup": lambda: PromptLookup(max_nodes=2),
    "suffix": lambda: SuffixDrafter(max_nodes=2),
    "suffix tree": lambda: SuffixDrafter(max_nodes=3, per_match=3, tree=True),
}
# The same chains from drafters that can draw any token: three to five seconds a rule.
LONG: dict[str, Callable[[], Drafter | None]] = {
    "long chain of 2": model_drafter(Chain(2)),
    "long chain that stops": model_drafter(Chain(3, Confidence(0.45))),
    "long chain that stops by its path": model_drafter(Chain(3, PathConfidence(0.3))),
}


def distribution_of_texts(target: TableModel, build: Callable[[], Method], tokens: int) -> np.ndarray:
    distribution = np.zeros((target.vocab,) * tokens)

    def run(rng: EnumeratingRng) -> list[int]:
        return one(TableExecutor(target), build(), tokens, rng, temperature=1.0)

    for weight, text in outcomes(run):
        distribution[tuple(text)] += weight
    return distribution


def pairs(drafters: dict[str, Callable[[], Drafter | None]] = DRAFTERS) -> list[tuple[str, str]]:
    """Every drafter with every rule that it may be used with."""
    found = []
    for name, build in drafters.items():
        drafter = build()
        if drafter is None:
            found.append((name, "sample-and-match"))
            continue
        rules = [r for r in RULES.values() if not r.lossy and not r.greedy_only]
        found += [(name, r.name) for r in rules if r.exact_with(drafter.kinds, drafter.topology)]
    return found


# Every pair on a target of two possible tokens at a place; of three in the slow run.
SLOW = [pytest.param(*pair, TARGET, marks=pytest.mark.slow) for pair in (*pairs(), *pairs(LONG))]


@pytest.mark.parametrize(("drafter", "rule", "target"), [*((*pair, TWO) for pair in pairs()), *SLOW])
def test_texts_follow_the_target(drafter: str, rule: str, target: TableModel) -> None:
    """After a prompt of two tokens, the distribution of the next three is the product of the target's own."""

    def build() -> Method:
        return Method("m", RULES[rule], (DRAFTERS | LONG)[drafter]())

    distribution = distribution_of_texts(target, build, TOKENS)
    assert np.abs(distribution - target.joint(TOKENS, (0, 1))).max() < 1e-6  # distributions are float32 in the engine


@pytest.mark.parametrize("target", [TWO, TARGET], ids=["two", "three"])
def test_a_wrong_pair_shows(monkeypatch: pytest.MonkeyPatch, target: TableModel) -> None:
    """The same check on a pair that is refused for good reason: a chosen tree under the p/q rule."""
    children = StaticTree._children
    monkeypatch.setattr("foredraft.engine.method.check_pair", lambda *_: None)
    monkeypatch.setattr(StaticTree, "kind", Kind.SAMPLED_WITHOUT_REPLACEMENT)
    chosen = StaticTree((2,))
    monkeypatch.setattr(StaticTree, "_children", lambda self, *args: children(chosen, *args))

    def build() -> Method:
        return Method("m", RULES["residual"], ModelDrafter(TableExecutor(NEAR), StaticTree((2,), drawn=True)))

    distribution = distribution_of_texts(target, build, 2)
    assert np.abs(distribution - target.joint(2, (0, 1))).sum() / 2 > 0.05


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_is_the_limit(drafter: str) -> None:
    """At temperature 0 every drafter leaves the target's argmax text, whatever rule its kind defaults to."""
    made = DRAFTERS[drafter]()
    rule = RULES["sample-and-match"] if made is None else default_rule(made.kinds, made.topology)
    text = one(TableExecutor(TARGET), Method("m", rule, made), 12)
    expected = [0, 1]
    for _ in range(12):
        expected.append(int(TARGET.next_distribution(expected).argmax()))
    assert text == expected[2:]
