"""Invariant 3 of the design: a rule's batched form agrees with its reference, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.trees.editing import cut
from foredraft.core.verify import RULES, BatchCase, Rule, tree_case
from foredraft.core.verify.tree_walk import NodeBatch
from foredraft.types import Kind, Topology
from tests.kit.drafting import Draft, batch_case_of, draft_tree
from tests.kit.exactness import emitted
from tests.kit.tables import at_temperature_zero, continued, dirichlet, mixed

VOCAB = 50
EXACT = [rule for rule in RULES.values() if not rule.lossy]
Case = tuple[Rule, tuple[Kind, ...], Topology]
CASES: list[Case] = [(rule, (kind,), topology) for rule in EXACT for kind, topology in sorted(rule.exact_for, key=str)]
MIXED = (Kind.CHOSEN, Kind.SAMPLED_WITHOUT_REPLACEMENT)
CASES += [
    (RULES[name], MIXED, topology) for name in ("residual", "one-hot", "sample-and-match") for topology in Topology
]


def name_of(value: object) -> str:
    return "+".join(kind.name for kind in value) if isinstance(value, tuple) else str(getattr(value, "name", value))


def rng_of(seed: int, batch: int) -> KeyedRng:
    rng = np.random.default_rng(seed)
    keys = torch.from_numpy(rng.integers(-(2**62), 2**62, batch))
    return KeyedRng(keys, torch.from_numpy(rng.integers(0, 99, batch)), torch.from_numpy(rng.integers(0, 999, batch)))


def random_case(
    rule: Rule, kinds: tuple[Kind, ...], topology: Topology, seed: int, dtype: torch.dtype = torch.float64
) -> BatchCase:
    """A few sequences with ragged drafts, some empty, cut anywhere, each level of one of the kinds.

    Every fourth seed makes a batch large enough for the tensor form of the hash, others hash plain integers.
    """
    numpy_rng = np.random.default_rng(seed)
    batch = 18 if seed % 4 == 2 else int(numpy_rng.integers(1, 8))
    drafter = dirichlet(VOCAB, seed, 0.1, support=6 if rule.name == "otm" else None)  # it lists all sets of draws
    target = mixed(drafter, dirichlet(VOCAB, seed + 1, 0.1), 0.6)
    rng = rng_of(seed, batch)
    drafts: list[Draft] = []
    for b in range(batch):
        depth = int(numpy_rng.integers(0, 4))
        shape = [1 if topology is Topology.CHAIN else int(numpy_rng.integers(1, 4)) for _ in range(depth)]
        levels = [Kind(int(numpy_rng.choice(kinds))) for _ in range(depth)]
        drafts.append(draft_tree(drafter, shape, levels, rng.choose(torch.tensor([b]))))
    model = at_temperature_zero(target) if rule.greedy_only or seed % 5 == 0 else target
    case = batch_case_of(drafts, model, drafter, dtype)(rng)
    limits = [int(numpy_rng.integers(0, 12)) for _ in range(batch)]
    return replace(case, drafts=cut(case.drafts, limits))


def alone(case: BatchCase, index: int) -> BatchCase:
    """One sequence of a batch as a batch of its own, padding included."""
    which = torch.tensor([index])
    drafts = case.drafts

    def part(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[which]

    assert isinstance(drafts.distributions, TableDistributions) and isinstance(case.target, TableDistributions)
    own = replace(
        drafts,
        token=drafts.token[which],
        parent=drafts.parent[which],
        depth=drafts.depth[which],
        order=drafts.order[which],
        length=drafts.length[which],
        multiplicity=part(drafts.multiplicity),
        node_kind=part(drafts.node_kind),
        distributions=TableDistributions(drafts.distributions.probs[which]),
        lengths_host=None,
    )
    return BatchCase(own, TableDistributions(case.target.probs[which]), case.rng.choose(which))


@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3, 4, 5), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("rule", "kinds", "topology"), CASES, ids=name_of)
def test_batched_form_agrees_with_the_readable_form(
    rule: Rule, kinds: tuple[Kind, ...], topology: Topology, dtype: torch.dtype, seeds: tuple[int, ...]
) -> None:
    accepted = 0
    for seed in seeds:
        case = random_case(rule, kinds, topology, seed, dtype)
        case.drafts.check()
        verdict = rule.verify_batch(case)
        for b in range(case.drafts.batch):
            own = verdict.row(b)
            assert own == rule.verify(tree_case(case, b))
            assert (verdict.path[b, len(own.path) :] == -1).all()
            assert (verdict.reason[b, len(own.path) + 1 :] == 0).all()
            accepted += len(own.path)
    assert accepted > 0, "a comparison that never accepts says little"


@pytest.mark.parametrize(("rule", "kinds", "topology"), CASES, ids=name_of)
def test_a_verdict_does_not_depend_on_batch_mates(rule: Rule, kinds: tuple[Kind, ...], topology: Topology) -> None:
    for seed in range(20, 22):
        case = random_case(rule, kinds, topology, seed)
        verdict = rule.verify_batch(case)
        for b in range(case.drafts.batch):
            assert rule.verify_batch(alone(case, b)).row(0) == verdict.row(b)


@pytest.mark.parametrize(("rule", "kinds", "topology"), CASES, ids=name_of)
def test_early_exits_change_nothing(
    rule: Rule, kinds: tuple[Kind, ...], topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device runs every loop to its fixed end, where the host leaves as soon as all is settled."""
    cases = [random_case(rule, kinds, topology, seed) for seed in range(30, 33)]
    early = [rule.verify_batch(case) for case in cases]
    monkeypatch.setattr(NodeBatch, "childless", lambda self: self.last)
    monkeypatch.setattr(NodeBatch, "settled", lambda self, slot: False)
    for case, verdict in zip(cases, early, strict=True):
        late = rule.verify_batch(case)
        assert [late.row(b) for b in range(case.drafts.batch)] == [verdict.row(b) for b in range(case.drafts.batch)]


@pytest.mark.parametrize("name", ["sample-and-match", "greedy", "one-hot", "residual"])
def test_chosen_drafts_need_no_distributions(name: str) -> None:
    rule = RULES[name]
    case = random_case(rule, (Kind.CHOSEN,), Topology.TREE, seed=3)
    bare = replace(case, drafts=replace(case.drafts, distributions=None))
    verdict, expected = rule.verify_batch(bare), rule.verify_batch(case)
    for b in range(case.drafts.batch):
        assert verdict.row(b) == expected.row(b) == rule.verify(tree_case(bare, b))


@pytest.mark.parametrize("name", ["chain", "block", "residual-iid"])
def test_rules_that_need_distributions_say_so(name: str) -> None:
    rule, model = RULES[name], dirichlet(4, 1)
    case = batch_case_of([draft_tree(model, (1, 1), Kind.SAMPLED_IID, rng_of(1, 1))], model, model)(rng_of(1, 1))
    bare = replace(case, drafts=replace(case.drafts, distributions=None))
    with pytest.raises(ValueError, match="draft's distributions"):
        rule.verify_batch(bare)
    with pytest.raises(ValueError, match="draft's distributions"):
        rule.verify(tree_case(bare, 0))


STABLE = [rule for rule in EXACT if rule.seed_stable]


@pytest.mark.parametrize("kind", list(Kind), ids=name_of)
@pytest.mark.parametrize("rule", STABLE, ids=name_of)
def test_seed_stable_rules_write_the_text_of_plain_decoding(rule: Rule, kind: Kind) -> None:
    plain = text_of(rule, Kind.CHOSEN, ())
    for shape in ((1, 1, 1), (2, 2), (3,)):
        assert text_of(rule, kind, shape) == plain


def text_of(rule: Rule, kind: Kind, shape: tuple[int, ...], length: int = 16) -> list[int]:
    """What a seed writes in rounds of such drafts."""
    drafter = dirichlet(8, 1, 0.5)
    target = mixed(drafter, dirichlet(8, 2, 0.5), 0.7)
    text: list[int] = []
    for turn in range(length):
        rng = KeyedRng(torch.tensor([77]), torch.tensor([turn]), torch.tensor([len(text)]))
        p, q = continued(target, text), continued(drafter, text)
        draft = draft_tree(q, shape, kind, rng)
        text += emitted(draft, rule.verify_batch(batch_case_of([draft], p, q)(rng)).row(0))
    return text[:length]
