"""Verification rules: pure functions from drafts, distributions and rng to a verdict. `RULES` is the table of names.

`FACTORIES` makes the rules that have parameters; `RULES` holds each with its defaults, and `find_rule` reads others as
`core.spec` spells them. Rules that need a trained part are made by their factory only.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import BiasedPairError, UsageError
from ...types import Kind, Topology
from ..spec import PartTable
from .base import BatchCase, PlainRng, Rule, TreeCase, tree_case
from .exact.canonical import canonical
from .exact.chain import BLOCK, CHAIN
from .exact.kseq import k_seq
from .exact.matching import GREEDY, SAMPLE_AND_MATCH
from .exact.optimal_transport import OPTIMAL_TRANSPORT
from .exact.rejection import ONE_HOT, RESIDUAL, RESIDUAL_IID
from .exact.top_then_sampled import TOP_THEN_SAMPLED
from .lossy.branches import ONE_BRANCH, best_branch
from .lossy.fly import fly
from .lossy.gates import fuzzy, kl_gate
from .lossy.judge import judge
from .lossy.lantern import lantern, lantern_pp
from .lossy.lenience import cactus, lenience
from .lossy.mixture import ensemble, mentored
from .lossy.typical import top_k, typical
from .node_rule import node_rule

FACTORIES: dict[str, Callable[..., Rule]] = {
    "k-seq": k_seq,
    "canonical": canonical,
    "typical": typical,
    "top-k": top_k,
    "lenience": lenience,
    "cactus": cactus,
    "ensemble": ensemble,
    "mentored": mentored,
    "fuzzy": fuzzy,
    "kl-gate": kl_gate,
    "fly": fly,
    "best-branch": best_branch,
}

_FIXED = [SAMPLE_AND_MATCH, GREEDY, ONE_HOT, RESIDUAL, RESIDUAL_IID, CHAIN, BLOCK]
_FIXED += [TOP_THEN_SAMPLED, OPTIMAL_TRANSPORT, ONE_BRANCH]
RULES: dict[str, Rule] = {rule.name: rule for rule in _FIXED} | {name: make() for name, make in FACTORIES.items()}

# Rules that a name alone cannot make, and what they need.
NEEDS = {
    "judge": "a trained head: --judge FOLDER, or core.verify.judge(head, threshold)",
    "lantern": "a codebook: --model lantern-demo, lantern:codebook=FILE, or core.verify.lantern(near)",
    "lantern++": "a codebook: --model lantern-demo, lantern++:codebook=FILE, or core.verify.lantern_pp(near)",
}

# What goes wrong when a rule meets drafts that it does not expect; part of the refusal.
_BIAS = {
    Kind.CHOSEN: "tokens that were chosen were not drawn from q, so p/q tests over-accept them",
    Kind.SAMPLED_WITHOUT_REPLACEMENT: "siblings drawn without replacement do not follow q one by one",
    Kind.SAMPLED_IID: "independent draws may repeat, which this rule does not account for",
    Kind.TOP_THEN_SAMPLED: "all but the last sibling were chosen and the last came from a cut distribution",
    Kind.SAMPLED_ADAPTIVELY: "how many siblings there are depends on their tokens, and this rule takes it as given",
}


def _always(rule: Rule) -> Callable[[], Rule]:
    return lambda: rule


SPELLINGS = PartTable("rule", {name: FACTORIES.get(name, _always(rule)) for name, rule in RULES.items()})


def find_rule(name: str) -> Rule:
    """The rule of that name; `name:value,..` or `name:key=value,..` sets the parameters of one that has some."""
    base = name.partition(":")[0].strip()
    if base in NEEDS:
        raise UsageError(f"rule {base!r} needs {NEEDS[base]}")
    return RULES[name] if name in RULES else SPELLINGS.make(name)


def default_rule(kinds: frozenset[Kind], topology: Topology) -> Rule:
    """The rule that accepts most among the cheap ones that are exact for such drafts, as enumeration shows.

    On independent draws `k-seq` and `canonical` accept more, at the cost of a search at every node: name them for it.
    """
    if kinds == {Kind.CHOSEN}:
        return SAMPLE_AND_MATCH
    if kinds == {Kind.TOP_THEN_SAMPLED}:
        return TOP_THEN_SAMPLED
    if kinds == {Kind.SAMPLED_IID} and topology is Topology.TREE:
        return RESIDUAL_IID  # on merged draws RESIDUAL is exact too, but the repeated draws are lost to it
    return RESIDUAL if RESIDUAL.exact_with(kinds, topology) else SAMPLE_AND_MATCH


def check_pair(rule: Rule, kinds: frozenset[Kind], topology: Topology) -> None:
    """Refuse a rule that would change the target's distribution with such drafts (DESIGN invariant 1).

    Lossy rules change it by design: whoever names one has asked for that.
    """
    if rule.lossy:
        return _check_lossy(rule, kinds, topology)
    if rule.exact_with(kinds, topology):
        return
    wrong = next(kind for kind in kinds if (kind, topology) not in rule.exact_for)
    chains_only = (wrong, Topology.CHAIN) in rule.exact_for and not any(t is Topology.TREE for _, t in rule.exact_for)
    why = "it handles chains only" if chains_only else _BIAS[wrong]
    raise BiasedPairError(
        f"rule {rule.name!r} is biased on a {topology.value} of {wrong.name} drafts: {why};"
        f" use rule {default_rule(kinds, topology).name!r}"
    )


def _check_lossy(rule: Rule, kinds: frozenset[Kind], topology: Topology) -> None:
    """A lossy rule changes the distribution by design, but what it reads must be there."""
    if rule.chains_only and topology is Topology.TREE:
        raise UsageError(f"rule {rule.name!r} handles chains only, and these drafts are trees")
    if rule.needs_distributions and Kind.CHOSEN in kinds:
        raise UsageError(
            f"rule {rule.name!r} needs the draft's distributions, and a drafter that chooses its tokens gives none"
        )


__all__ = [
    "FACTORIES",
    "NEEDS",
    "RULES",
    "SPELLINGS",
    "BatchCase",
    "PlainRng",
    "Rule",
    "TreeCase",
    "check_pair",
    "default_rule",
    "find_rule",
    "judge",
    "lantern",
    "lantern_pp",
    "node_rule",
    "tree_case",
]
