"""The declared table of legal pairs is the derived one; and so is the effect of stop rules."""

from __future__ import annotations

import pytest

from foredraft.core.verify import RULES, Rule
from foredraft.types import Kind, Topology

from .derive import BITING, STOPS, legal_pairs, stop_is_legal

SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT
BLIND = {"sample-and-match", "one-hot", "greedy"}  # rules that never look at q
CHAIN_RULES = [rule for rule in RULES.values() if not rule.lossy and (SWOR, Topology.CHAIN) in rule.exact_for]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_declared_pairs_are_the_derived_ones(rule: Rule) -> None:
    assert rule.exact_for == legal_pairs(BITING.get(rule.name, rule))
    assert not (rule.lossy and rule.exact_for)


@pytest.mark.parametrize("stop", ["stop after", "stop before"])
@pytest.mark.parametrize("rule", CHAIN_RULES, ids=lambda rule: rule.name)
def test_whoever_prevents_draws_changes_nothing(rule: Rule, stop: str) -> None:
    assert stop_is_legal(rule, STOPS[stop], SWOR)


@pytest.mark.parametrize("stop", ["drop unlikely", "drop by later row"])
@pytest.mark.parametrize("rule", CHAIN_RULES, ids=lambda rule: rule.name)
def test_whoever_drops_drawn_tokens_must_call_the_rest_chosen(rule: Rule, stop: str) -> None:
    assert stop_is_legal(rule, STOPS[stop], SWOR) == (rule.name in BLIND)
    if (Kind.CHOSEN, Topology.CHAIN) in rule.exact_for:
        assert stop_is_legal(rule, STOPS[stop], Kind.CHOSEN)
