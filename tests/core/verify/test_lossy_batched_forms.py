"""Invariant 3 for lossy rules: both forms agree on ragged batches, with states and temperature-1 views."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foredraft.core.distributions.sampling import LogitDistributions, ParamBlock
from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.host_look import looking_away
from foredraft.core.verify import RULES, BatchCase, Rule, find_rule, judge, lantern, lantern_pp, tree_case
from foredraft.core.verify.lossy.lantern import nearest_codes
from foredraft.types import Distributions, Kind, SamplingParams, Topology
from tests.core.verify.test_batched_forms import VOCAB, random_case, rng_of
from tests.kit.drafting import batch_case_of, draft_tree
from tests.kit.tables import dirichlet

CODES = nearest_codes(torch.rand((VOCAB, 2), generator=torch.Generator().manual_seed(0)), 20)
LOSSY = [rule for rule in RULES.values() if rule.lossy]
LOSSY += [
    find_rule(name)
    for name in ("fuzzy:0.3,kl,standard", "kl-gate:2", "fly:0.1,0", "fly:0.1,1", "fly:0.2,2,code", "mentored:1")
]
LOSSY += [judge(lambda states: states[..., 0], 0.3, forbidden_ids=[3, 7], floor=1e-3)]
LOSSY += [lantern(CODES, 5, 0.2), lantern_pp(CODES, 5, 3.0), lantern(CODES, 5, 0.2, greedy=True)]
KINDS = [(kind,) for kind in Kind] + [(Kind.CHOSEN, Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.TOP_THEN_SAMPLED)]


def full_case(rule: Rule, kinds: tuple[Kind, ...], topology: Topology, seed: int, empty: bool = False) -> BatchCase:
    case = empty_case(kinds, seed) if empty else random_case(rule, kinds, topology, seed)
    make = torch.Generator().manual_seed(seed)
    assert isinstance(case.target, TableDistributions)
    view = torch.softmax(torch.log(case.target.probs + 1e-3), dim=2) if rule.needs_temperature_one else None
    hidden = torch.rand((case.drafts.batch, case.drafts.width + 1, 4), generator=make)
    return replace(case, hidden=hidden, temperature_one=None if view is None else TableDistributions(view))


def empty_case(kinds: tuple[Kind, ...], seed: int) -> BatchCase:
    """Two sequences for which nobody drafted."""
    rng, model = rng_of(seed, 2), dirichlet(VOCAB, seed, 0.1)
    drafts = [draft_tree(model, [], [], rng.choose(torch.tensor([b]))) for b in range(2)]
    case = batch_case_of(drafts, model, model, torch.float64)(rng)
    return replace(case, drafts=replace(case.drafts, kind=kinds[0]))


@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: rule.name)
@pytest.mark.parametrize("topology", list(Topology), ids=lambda topology: topology.value)
@pytest.mark.parametrize("seeds", [(0,), pytest.param((1, 2), marks=pytest.mark.slow)], ids=str)
def test_both_forms_agree(rule: Rule, topology: Topology, seeds: tuple[int, ...]) -> None:
    if rule.name.startswith("fly") and topology is Topology.TREE:
        pytest.skip("chains only")
    accepted = 0
    for number, kinds in enumerate(KINDS):
        for seed in seeds:
            case = full_case(rule, kinds, topology, 10 * number + seed)
            verdict = rule.verify_batch(case)
            for b in range(case.drafts.batch):
                assert verdict.row(b) == rule.verify(tree_case(case, b)), (kinds, seed, b)
                accepted += len(verdict.row(b).path)
    assert accepted > 0


@pytest.mark.parametrize(
    "rule", [*[rule for rule in RULES.values() if not rule.lossy], *LOSSY], ids=lambda rule: rule.name
)
@pytest.mark.parametrize("empty", [False, True], ids=["ragged", "empty"])
def test_verdicts_are_the_same_where_nobody_may_look(rule: Rule, empty: bool) -> None:
    """As on a device: loops run to their fixed ends, on rounds in which nobody drafted too."""
    kind = min((kind for kind, shape in rule.exact_for if shape is Topology.CHAIN), key=str, default=Kind.CHOSEN)
    for seed in (1, 3):
        case = full_case(rule, (kind,), Topology.CHAIN, seed, empty)
        assert (case.drafts.width == 0) == empty
        seen = rule.verify_batch(case)
        with looking_away():
            unseen = rule.verify_batch(case)
        assert [unseen.row(b) for b in range(case.drafts.batch)] == [seen.row(b) for b in range(case.drafts.batch)]


def short_of_rows(case: BatchCase) -> BatchCase:
    """No sequence has the last node, and a pass has no rows for it."""
    drafts = case.drafts
    lengths = drafts.length.clamp(max=drafts.width - 1)

    def rows(table: Distributions | None) -> LogitDistributions:
        assert isinstance(table, TableDistributions)
        kept = table.probs[:, :-1]
        block = ParamBlock.of([SamplingParams(temperature=1.0)] * drafts.batch, VOCAB)
        index = torch.arange(kept.shape[0] * kept.shape[1]).view(kept.shape[:2])
        return LogitDistributions(torch.log(kept).flatten(0, 1), index, block)

    view = None if case.temperature_one is None else rows(case.temperature_one)
    hidden = None if case.hidden is None else case.hidden[:, :-1]
    cut = replace(drafts, length=lengths, lengths_host=None)
    return replace(case, drafts=cut, target=rows(case.target), temperature_one=view, hidden=hidden)


@pytest.mark.parametrize(
    "rule", [*[rule for rule in RULES.values() if not rule.lossy], *LOSSY], ids=lambda rule: rule.name
)
def test_nodes_that_no_sequence_has_need_no_rows(rule: Rule) -> None:
    """A drafter's columns are as many as it may fill; a device's loops go through all of them."""
    kind = min((kind for kind, shape in rule.exact_for if shape is Topology.CHAIN), key=str, default=Kind.CHOSEN)
    for seed in (1, 3):
        case = short_of_rows(full_case(rule, (kind,), Topology.CHAIN, seed))
        assert case.drafts.width > 1
        seen = rule.verify_batch(case)
        with looking_away():
            unseen = rule.verify_batch(case)
        assert [unseen.row(b) for b in range(case.drafts.batch)] == [seen.row(b) for b in range(case.drafts.batch)]
