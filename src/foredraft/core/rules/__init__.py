"""Verification rules: pure functions from drafts, laws and dice to a verdict. `RULES` is the table of names."""

from __future__ import annotations

from ...errors import BiasedPairError, unknown_name
from ...types import Kind, Topology
from .base import BatchCase, Roll, Rule, TreeCase, tree_case
from .chain import BLOCK, CHAIN
from .matching import GREEDY, SAMPLE_AND_MATCH
from .rejection import ONE_HOT, RESIDUAL, RESIDUAL_IID

RULES: dict[str, Rule] = {
    rule.name: rule for rule in (SAMPLE_AND_MATCH, GREEDY, ONE_HOT, RESIDUAL, RESIDUAL_IID, CHAIN, BLOCK)
}

# What goes wrong when a rule meets drafts that it does not expect; part of the refusal.
_BIAS = {
    Kind.CHOSEN: "tokens that were chosen were not drawn from q, so p/q tests over-accept them",
    Kind.SAMPLED_WITHOUT_REPLACEMENT: "siblings drawn without replacement do not follow q one by one",
    Kind.SAMPLED_IID: "independent draws may repeat, which this rule does not account for",
    Kind.TOP_THEN_SAMPLED: "all but the last sibling were chosen and the last came from a cut law",
}


def find_rule(name: str) -> Rule:
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


def default_rule(kinds: frozenset[Kind], topology: Topology) -> Rule:
    """The rule that accepts most among those that are exact for such drafts, as enumeration shows."""
    if kinds == {Kind.CHOSEN}:
        return SAMPLE_AND_MATCH
    if kinds == {Kind.SAMPLED_IID} and topology is Topology.TREE:
        return RESIDUAL_IID  # on merged draws RESIDUAL is exact too, but the repeated draws are lost to it
    return RESIDUAL if RESIDUAL.exact_with(kinds, topology) else SAMPLE_AND_MATCH


def check_pair(rule: Rule, kinds: frozenset[Kind], topology: Topology) -> None:
    """Refuse a rule that would change the target's law with such drafts (DESIGN law 1). Lossy rules are asked for."""
    if rule.lossy or rule.exact_with(kinds, topology):
        return
    wrong = next(kind for kind in kinds if (kind, topology) not in rule.exact_for)
    chains_only = (wrong, Topology.CHAIN) in rule.exact_for and not any(t is Topology.TREE for _, t in rule.exact_for)
    why = "it handles chains only" if chains_only else _BIAS[wrong]
    raise BiasedPairError(
        f"rule {rule.name!r} is biased on a {topology.value} of {wrong.name} drafts: {why};"
        f" use rule {default_rule(kinds, topology).name!r}"
    )


__all__ = [
    "RULES",
    "BatchCase",
    "Roll",
    "Rule",
    "TreeCase",
    "check_pair",
    "default_rule",
    "find_rule",
    "tree_case",
]
