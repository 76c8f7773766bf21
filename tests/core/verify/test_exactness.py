"""T1 of the spec: every rule on every kind of drafts, in both forms, under the exact interpreter.

A rule is exact where it says so and biased where it does not: the declared table is held to the enumerated one.
Lengths are one more than the drafted depth, so that the rows after accepted drafts are tested too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from foredraft.core.verify import RULES, Rule, check_pair, default_rule
from foredraft.errors import BiasedPairError
from foredraft.types import Kind, Topology
from tests.kit.drafting import Draft, batch_case_of, tree_case_of
from tests.kit.exactness import distortion, first_tokens, is_exact, method_of
from tests.kit.ledger import Ledger
from tests.kit.tables import TableModel, at_temperature_zero, dirichlet, fixed

Pair = tuple[TableModel, TableModel]
EXACT = [rule for rule in RULES.values() if not rule.lossy]
DECLARED = [(rule, kind, topology) for rule in EXACT for kind, topology in sorted(rule.exact_for, key=str)]
UNDECLARED = [
    (rule, kind, topology)
    for rule in EXACT
    for kind in Kind
    for topology in Topology
    if (kind, topology) not in rule.exact_for
]
# With one child per node "the k - 1 most likely, then one draw" is a single draw from q, so p/q rules happen to be
# right.
# They refuse it all the same: a drafter of this kind that ends up with one child may have chosen it.
EXACT_BUT_REFUSED = {(Kind.TOP_THEN_SAMPLED, Topology.CHAIN)}
SHAPES = {Topology.CHAIN: ((1,), (1, 1)), Topology.TREE: ((2,), (3,))}
JOINT_SHAPES = {Topology.CHAIN: (1, 1), Topology.TREE: (2, 2)}


def name_of(value: object) -> str:
    return str(getattr(value, "name", value)).lower()


def models(rule: Rule, vocab: int, seeds: range, alphas: tuple[float, ...] = (0.3, 1.0, 3.0)) -> Iterator[Pair]:
    """Random (target, draft) pairs, with and without impossible tokens. Greedy rules get one-hot targets."""
    for seed in seeds:
        for alpha in alphas:
            for support in (None, vocab - 1):
                target = dirichlet(vocab, 2 * seed, alpha, None if seed % 2 else support)
                target = at_temperature_zero(target) if rule.greedy_only else target
                yield target, dirichlet(vocab, 2 * seed + 1, alpha, support)


@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
@pytest.mark.parametrize(("rule", "kind", "topology"), DECLARED, ids=name_of)
def test_declared_pairs_are_exact(rule: Rule, kind: Kind, topology: Topology, batched: bool) -> None:
    pairs = models(rule, 3, range(1), (1.0,) if batched else (0.3, 1.0, 3.0))
    for target, drafter in pairs:
        for shape in SHAPES[topology]:
            assert is_exact(method_of(rule, target, drafter, shape, kind, batched=batched), target, len(shape) + 1)


@pytest.mark.parametrize(("rule", "kind", "topology"), DECLARED, ids=name_of)
def test_declared_pairs_are_exact_jointly(rule: Rule, kind: Kind, topology: Topology) -> None:
    """Two drafted levels. Independent draws come from two tokens here, or the outcomes would be too many."""
    target, drafter = dirichlet(3, 7), dirichlet(3, 8, support=2 if kind == Kind.SAMPLED_IID else None)
    target = at_temperature_zero(target) if rule.greedy_only else target
    assert is_exact(method_of(rule, target, drafter, JOINT_SHAPES[topology], kind), target, 3)


@pytest.mark.parametrize(("rule", "kind", "topology"), DECLARED, ids=name_of)
def test_batched_forms_are_exact_jointly(rule: Rule, kind: Kind, topology: Topology) -> None:
    """As above, with draft distributions of two tokens, which keep the number of outcomes small, and with one more draw
    after each of two independent ones; the slow test below has two."""
    target, drafter = dirichlet(3, 20), dirichlet(3, 21, support=2)
    target = at_temperature_zero(target) if rule.greedy_only else target
    shape = (2, 1) if (kind, topology) == (Kind.SAMPLED_IID, Topology.TREE) else JOINT_SHAPES[topology]
    assert is_exact(method_of(rule, target, drafter, shape, kind, batched=True), target, 3)


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
@pytest.mark.parametrize(("rule", "kind", "topology"), DECLARED, ids=name_of)
def test_declared_pairs_are_exact_on_many_distributions(
    rule: Rule, kind: Kind, topology: Topology, batched: bool
) -> None:
    """More distributions for the reference than for the batched form, which `test_batched_forms` ties to it."""
    for target, drafter in models(rule, 3, range(100, 104)) if batched else models(rule, 4, range(100, 117)):
        for shape in SHAPES[topology]:
            assert is_exact(method_of(rule, target, drafter, shape, kind, batched=batched), target, len(shape) + 1)
    for target, drafter in models(rule, 3, range(200, 201), (1.0,) if batched else (0.3, 1.0, 3.0)):
        assert is_exact(method_of(rule, target, drafter, JOINT_SHAPES[topology], kind, batched=batched), target, 3)


@pytest.mark.parametrize(("rule", "kind", "topology"), DECLARED, ids=name_of)
def test_temperature_zero_is_the_limit_of_every_rule(rule: Rule, kind: Kind, topology: Topology) -> None:
    for seed in range(2):
        target, drafter = at_temperature_zero(dirichlet(3, seed)), dirichlet(3, 50 + seed)
        distribution = first_tokens(method_of(rule, target, drafter, SHAPES[topology][1], kind), target, 2)
        assert np.array_equal(distribution.round(12), target.joint(2))


@pytest.mark.parametrize(("rule", "kind", "topology"), UNDECLARED, ids=name_of)
def test_undeclared_pairs_are_refused_and_biased(rule: Rule, kind: Kind, topology: Topology) -> None:
    with pytest.raises(BiasedPairError, match=rule.name) as refusal:
        check_pair(rule, frozenset({kind}), topology)
    assert repr(default_rule(frozenset({kind}), topology).name) in str(refusal.value)
    worst = max(
        distortion(method_of(rule, target, drafter, shape, kind), target, 3)
        for target, drafter in models(rule, 3, range(1))
        for shape in SHAPES[topology]
    )
    assert worst < 1e-10 if (kind, topology) in EXACT_BUT_REFUSED else worst > 1e-3


@pytest.mark.parametrize(("rule", "kind", "topology"), DECLARED, ids=name_of)
def test_declared_pairs_are_let_through(rule: Rule, kind: Kind, topology: Topology) -> None:
    check_pair(rule, frozenset({kind}), topology)
    assert rule.exact_with(frozenset({kind}), topology)


def test_greedy_alone_needs_temperature_zero() -> None:
    target, drafter = dirichlet(3, 1), dirichlet(3, 2)
    for rule in EXACT:
        method = method_of(rule, target, drafter, (1,), Kind.SAMPLED_WITHOUT_REPLACEMENT)
        assert is_exact(method, target, 2) != rule.greedy_only


@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
@pytest.mark.parametrize(
    "kinds",
    [(Kind.CHOSEN, Kind.SAMPLED_WITHOUT_REPLACEMENT), (Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.CHOSEN)],
    ids=str,
)
def test_the_residual_rule_mixes_chosen_and_drawn_levels(kinds: tuple[Kind, Kind], batched: bool) -> None:
    target, drafter = dirichlet(3, 5), dirichlet(3, 6)
    method = method_of(RULES["residual"], target, drafter, (2, 2), kinds, batched=batched)
    assert is_exact(method, target, 3)


@pytest.mark.parametrize("kind", list(Kind), ids=name_of)
def test_plain_decoding_is_every_rule_without_drafts(kind: Kind) -> None:
    target, drafter = dirichlet(4, 3), dirichlet(4, 4)
    for rule in EXACT:
        mine = at_temperature_zero(target) if rule.greedy_only else target
        for batched in (False, True):
            assert is_exact(method_of(rule, mine, drafter, (), kind, batched=batched), mine, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None], ids=str)
@pytest.mark.parametrize("tokens", [(0, 2), (0, 2, 1), (0, 0, 0, 0, 0, 0)], ids=str)
def test_a_candidate_that_cannot_have_been_drawn_costs_its_token_nothing(
    tokens: tuple[int, ...], dtype: torch.dtype | None
) -> None:
    """A draft distribution of one token has no second draw. One that is there anyway is rejected; it may be emitted."""
    target, drafter, count = fixed((0.3, 0.4, 0.3)), fixed((1.0, 0.0, 0.0)), len(tokens)
    draft = Draft(tokens, (-1,) * count, (1,) * count, (Kind.SAMPLED_WITHOUT_REPLACEMENT,) * count)
    ledger = Ledger()
    if dtype is None:
        RULES["residual"].verify(tree_case_of(draft, target, drafter)(ledger))
    else:
        RULES["residual"].verify_batch(batch_case_of([draft], target, drafter, dtype)(ledger))
    assert ledger.tests[0] == pytest.approx(0.3) and not any(ledger.tests[1:])
    assert ledger.drawn[0] == pytest.approx([0, 4 / 7, 3 / 7])


@pytest.mark.parametrize("rest", [1e-4, 1e-6, 3e-8])
def test_float32_keeps_the_tail_of_a_peaked_draft_distribution(rest: float) -> None:
    """After a token of q near one, 1 - q is rounding error; the second draw must not be tested with it."""
    target, drafter = fixed((0.3, 0.4, 0.3)), fixed((1 - rest, 0.6 * rest, 0.4 * rest))
    draft = Draft((0, 1), (-1, -1), (1, 1), (Kind.SAMPLED_WITHOUT_REPLACEMENT,) * 2)
    ledger = Ledger()
    RULES["residual"].verify_batch(batch_case_of([draft], target, drafter, torch.float32)(ledger))
    assert ledger.tests == pytest.approx([0.3, (0.4 / 0.7) / 0.6], rel=1e-3)
    assert ledger.drawn[0] == pytest.approx([0, 0, 1], abs=1e-3)
