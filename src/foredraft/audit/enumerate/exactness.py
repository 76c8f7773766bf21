"""The exactness check: the distribution of what one round emits, by enumeration, against the target's own distribution.

A round that emits few tokens is continued with plain draws from the target up to a fixed length, so that the joint
distribution of the first tokens can be compared; the continuation is multiplied in, not enumerated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.rng.enumerating import distribution_of_outcomes, outcomes
from ...core.rng.keyed import Rng
from ...core.verify import Rule
from ...types import Kind, TreeVerdict
from .table_drafts import Draft, batch_case_of, draft_tree, tree_case_of
from .table_model import Array, Prefix, TableModel

Emit = Callable[[Rng], Prefix]  # one round, given its drafts: the emitted tokens


@dataclass(frozen=True)
class Method:
    """How drafts are made, and what a round emits with them. The right rules and the wrong ones are both Methods."""

    draft: Callable[[Rng], Hashable]
    judge: Callable[[Any], Emit]
    drafts: Mapping[Any, float] | None = None  # their distribution, where it is known already


def emitted_distribution(method: Method) -> dict[Prefix, float]:
    """The distribution of the tokens that one round emits."""
    distribution: dict[Prefix, float] = defaultdict(float)
    drafts = distribution_of_outcomes(method.draft) if method.drafts is None else method.drafts
    for draft, chance in drafts.items():
        for weight, tokens in outcomes(method.judge(draft)):
            distribution[tokens] += chance * weight
    return dict(distribution)


def first_tokens(method: Method, target: TableModel, length: int) -> Array:
    """Joint distribution of the first `length` tokens of a round that plain decoding continues."""
    distribution = np.zeros((target.vocab,) * length)
    for tokens, weight in emitted_distribution(method).items():
        head = tokens[:length]
        distribution[head] += weight * target.joint(length - len(head), head)
    return distribution


def distortion(method: Method, target: TableModel, length: int) -> float:
    """Total variation between the first `length` tokens and the target's own distribution."""
    return float(np.abs(first_tokens(method, target, length) - target.joint(length)).sum() / 2)


def is_exact(method: Method, target: TableModel, length: int) -> bool:
    """The check of the spec's T1: no outcome is off by 1e-10."""
    return float(np.abs(first_tokens(method, target, length) - target.joint(length)).max()) < 1e-10


def accepted_tokens(method: Method) -> float:
    """Mean number of drafted tokens that a round keeps; every round adds one token of the target's own."""
    return sum(weight * (len(tokens) - 1) for tokens, weight in emitted_distribution(method).items())


def method_of(
    rule: Rule,
    target: TableModel,
    drafter: TableModel,
    shape: Sequence[int],
    kinds: Kind | Sequence[Kind],
    *,
    batched: bool = False,
) -> Method:
    """A rule on drafts of a kind and shape, in its readable or its batched form."""
    judge = judge_of(rule, target, drafter, batched=batched)
    return Method(lambda rng: draft_tree(drafter, shape, kinds, rng), judge)


def judge_of(rule: Rule, target: TableModel, drafter: TableModel, *, batched: bool = False) -> Callable[[Draft], Emit]:
    """What a rule emits, given drafts that were made by whatever means."""

    def judge(draft: Draft) -> Emit:
        if batched:
            block = batch_case_of([draft], target, drafter)
            return lambda rng: emitted(draft, rule.verify_batch(block(rng)).row(0))
        case = tree_case_of(draft, target, drafter)
        return lambda rng: emitted(draft, rule.verify(case(rng)))

    return judge


def emitted(draft: Draft, verdict: TreeVerdict) -> Prefix:
    return (*(draft.token[node] for node in verdict.path), verdict.token)
