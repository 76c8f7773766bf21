"""T3 of the spec: the production path, with keyed rng and float32 distributions, on a large batch of rounds."""

from __future__ import annotations

import pytest

from foredraft.core.verify import RULES, Rule
from foredraft.types import Kind, Topology
from tests.kit.chance import chance_of
from tests.kit.rounds import Rounds
from tests.kit.tables import dirichlet, mixed

SIZES = [20_000, pytest.param(200_000, marks=pytest.mark.slow)]
SEARCHING = {"k-seq", "canonical", "otm"}  # solve a small problem per sequence on the host
CASES = [
    (rule, kind, topology)
    for rule in RULES.values()
    if not rule.lossy and not rule.greedy_only
    for kind, topology in sorted(rule.exact_for, key=str)
    # Rules that never look at q are tried on two kinds; enumeration covers the others.
    if len(rule.exact_for) < len(Kind) * len(Topology) or kind in (Kind.CHOSEN, Kind.SAMPLED_IID)
]
LEVEL = 1e-3 / len(CASES)  # one thousandth, shared by all cases


def rounds(kind: Kind, topology: Topology, seed: int, count: int) -> Rounds:
    drafter = dirichlet(8, 2 * seed, 0.7)
    target = mixed(drafter, dirichlet(8, 2 * seed + 1, 0.7, support=7), 0.4)
    independent = (3,) if kind == Kind.SAMPLED_IID else (3, 2)
    return Rounds(target, drafter, (1, 1) if topology is Topology.CHAIN else independent, kind, count, seed)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("rule", "kind", "topology"), CASES, ids=lambda value: str(getattr(value, "name", value)))
def test_emitted_texts_follow_the_target(rule: Rule, kind: Kind, topology: Topology, count: int) -> None:
    sample = rounds(kind, topology, seed=3, count=count // 20 if rule.name in SEARCHING else count)
    assert chance_of(sample.texts(rule), sample.target.joint(2)) > LEVEL


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(
    ("rule", "kind", "topology"),
    [
        ("residual-iid", Kind.SAMPLED_WITHOUT_REPLACEMENT, Topology.TREE),
        ("residual", Kind.TOP_THEN_SAMPLED, Topology.TREE),
        ("chain", Kind.CHOSEN, Topology.CHAIN),
        ("greedy", Kind.CHOSEN, Topology.CHAIN),
    ],
)
def test_the_check_flags_biased_pairs(rule: str, kind: Kind, topology: Topology, count: int) -> None:
    sample = rounds(kind, topology, seed=3, count=count)
    assert chance_of(sample.texts(RULES[rule]), sample.target.joint(2)) < LEVEL
