"""The golden vectors of the verification spec, section 0.7, and the invariants T5 between rules."""

from __future__ import annotations

import pytest

from foredraft.core.verify import RULES, default_rule
from foredraft.types import Kind, Topology
from tests.kit.drafting import Draft, batch_case_of, tree_case_of
from tests.kit.exactness import Method, accepted_tokens, emitted_distribution, first_tokens, method_of
from tests.kit.ledger import Ledger
from tests.kit.tables import G1_DRAFT, G1_TARGET, G2_DRAFT, G2_TARGET, G3_DRAFT, G3_TARGET, TableModel, dirichlet

SWOR, IID = Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.SAMPLED_IID
FORMS = pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])


def g1(rule: str, kind: Kind, count: int, batched: bool = False) -> Method:
    return method_of(RULES[rule], G1_TARGET, G1_DRAFT, (count,), kind, batched=batched)


def chain(rule: str, target: TableModel, drafter: TableModel, length: int, batched: bool = False) -> Method:
    return method_of(RULES[rule], target, drafter, (1,) * length, SWOR, batched=batched)


G1_ACCEPTANCE = [
    ("sample-and-match", IID, 2, 0.3255),
    ("sample-and-match", IID, 3, 0.4338125),
    ("one-hot", IID, 2, 0.3255),
    ("one-hot", IID, 3, 0.4338125),
    ("residual-iid", IID, 2, 0.71),
    ("residual-iid", IID, 3, 0.7535),
    ("residual", SWOR, 2, 0.736153846),
    ("residual", SWOR, 3, 0.821314103),
    ("sample-and-match", Kind.CHOSEN, 2, 0.45),
    ("sample-and-match", Kind.CHOSEN, 3, 0.50),
    ("one-hot", Kind.CHOSEN, 2, 0.45),
    ("residual", Kind.CHOSEN, 3, 0.50),
    ("chain", SWOR, 1, 0.60),
    ("chain", IID, 1, 0.60),
    ("residual", SWOR, 1, 0.60),
    ("residual-iid", IID, 1, 0.60),
    ("block", SWOR, 1, 0.60),
]


@pytest.mark.parametrize(("rule", "kind", "count", "acceptance"), G1_ACCEPTANCE)
def test_g1_acceptance(rule: str, kind: Kind, count: int, acceptance: float) -> None:
    assert accepted_tokens(g1(rule, kind, count)) == pytest.approx(acceptance, abs=1e-9)


@pytest.mark.parametrize(("rule", "kind", "count", "acceptance"), [row for row in G1_ACCEPTANCE if row[2] < 3])
def test_g1_acceptance_of_batched_forms(rule: str, kind: Kind, count: int, acceptance: float) -> None:
    assert accepted_tokens(g1(rule, kind, count, batched=True)) == pytest.approx(acceptance, abs=1e-9)


@pytest.mark.parametrize("rule", ["chain", "residual", "residual-iid", "block"])
def test_g1_residual_of_a_single_draft(rule: str) -> None:
    """What is emitted where the draft was rejected: Nrm([p - q]+) = (.75, .125, 0, .125, 0)."""
    alone = {
        tokens[0]: chance for tokens, chance in emitted_distribution(g1(rule, SWOR, 1)).items() if len(tokens) == 1
    }
    distribution = [alone.get(v, 0.0) / sum(alone.values()) for v in range(5)]
    assert distribution == pytest.approx([0.75, 0.125, 0, 0.125, 0], abs=1e-9)


@FORMS
@pytest.mark.parametrize(
    ("target", "drafter", "rule", "means"),
    [
        (G2_TARGET, G2_DRAFT, "chain", (2 / 3, 10 / 9, 38 / 27)),
        (G2_TARGET, G2_DRAFT, "residual", (2 / 3, 10 / 9, 38 / 27)),
        (G2_TARGET, G2_DRAFT, "block", (2 / 3, 11 / 9, 5 / 3)),
        (G3_TARGET, G3_DRAFT, "chain", (0.6, 0.96, 1.176)),
        (G3_TARGET, G3_DRAFT, "block", (0.6, 1.045, 1.3825)),
    ],
    ids=["G2 chain", "G2 residual", "G2 block", "G3 chain", "G3 block"],
)
def test_g2_and_g3_accepted_tokens(
    target: TableModel, drafter: TableModel, rule: str, means: tuple[float, ...], batched: bool
) -> None:
    lengths = (1, 2) if batched and target is G3_TARGET else (1, 2, 3)
    for length in lengths:
        mean = accepted_tokens(chain(rule, target, drafter, length, batched))
        assert mean == pytest.approx(means[length - 1], abs=1e-9)


@FORMS
@pytest.mark.parametrize(
    ("tokens", "tests"),
    [((0, 0), (0, 0.25)), ((0, 1), (0, 1)), ((1, 0), (1, 0.5)), ((1, 1), (1, 1))],
)
def test_g2_block_tests(tokens: tuple[int, int], tests: tuple[float, float], batched: bool) -> None:
    """h_1 and h_2 of the four drafts of G2 (M = 2); h_2 is P_2."""
    draft, ledger = Draft(tokens, (-1, 0), (1, 1), (SWOR, SWOR)), Ledger()
    if batched:
        RULES["block"].verify_batch(batch_case_of([draft], G2_TARGET, G2_DRAFT)(ledger))
    else:
        RULES["block"].verify(tree_case_of(draft, G2_TARGET, G2_DRAFT)(ledger))
    assert ledger.tests == pytest.approx(tests, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "joint"),
    [((0,), 0.5), ((1,), 1.0), ((0, 0), 0.25), ((0, 1), 1.0), ((1, 0), 0.5), ((1, 1), 1.0)],
)
def test_g2_joint_ratios(tokens: tuple[int, ...], joint: float) -> None:
    """P_1 and P_2 of G2: the last test of a chain is P itself."""
    draft, ledger = Draft(tokens, (-1, 0)[: len(tokens)], (1,) * len(tokens), (SWOR,) * len(tokens)), Ledger()
    RULES["block"].verify(tree_case_of(draft, G2_TARGET, G2_DRAFT)(ledger))
    assert ledger.tests[-1] == pytest.approx(joint, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_block_accepts_at_least_as_much_as_the_chain_test(seed: int) -> None:
    target, drafter = dirichlet(3, seed), dirichlet(3, 40 + seed)
    for length in (1, 2, 3):
        block, classical = (accepted_tokens(chain(rule, target, drafter, length)) for rule in ("block", "chain"))
        assert block >= classical - 1e-12
        assert length > 1 or block == pytest.approx(classical, abs=1e-12)


@pytest.mark.parametrize("rule", ["chain", "block", "residual", "residual-iid"])
def test_a_perfect_drafter_is_always_accepted(rule: str) -> None:
    model = dirichlet(3, 8)
    assert accepted_tokens(chain(rule, model, model, 2)) == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_one_candidate_makes_all_p_over_q_rules_one(seed: int) -> None:
    target, drafter = dirichlet(4, seed), dirichlet(4, 60 + seed)
    distributions = [
        first_tokens(chain(rule, target, drafter, 1), target, 2) for rule in ("chain", "residual", "residual-iid")
    ]
    means = [accepted_tokens(chain(rule, target, drafter, 1)) for rule in ("chain", "residual", "residual-iid")]
    assert means == pytest.approx([means[0]] * 3, abs=1e-12)
    assert all(abs(distribution - distributions[0]).max() < 1e-12 for distribution in distributions)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("seed", range(3))
def test_the_default_rule_accepts_most_at_a_node(kind: Kind, seed: int) -> None:
    target, drafter = dirichlet(3, seed, 1.0), dirichlet(3, 70 + seed, 1.0)
    # Searching at every node accepts more, and on some draws without replacement so does the rule for greedy drafts.
    costly = {"otm", "canonical", "k-seq"} | (set() if kind == Kind.TOP_THEN_SAMPLED else {"top-then-sampled"})
    exact = [rule for rule in RULES.values() if rule.exact_with(frozenset({kind}), Topology.TREE)]
    means = {
        rule.name: accepted_tokens(method_of(rule, target, drafter, (2,), kind))
        for rule in exact
        if not rule.greedy_only and rule.name not in costly
    }
    best = default_rule(frozenset({kind}), Topology.TREE).name
    assert means[best] == pytest.approx(max(means.values()), abs=1e-12)
