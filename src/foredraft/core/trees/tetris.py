"""TETRIS on batches of drafts: cut what was drafted for several requests down to the best of it.

`core.trees.select` has the choice itself; here it is applied to drafts with the values that their drafters gave them.
Drawn chains are scored by their distributions and stay what they are; trees and chosen chains are scored by their
values, which may look at tokens, so what is left of them is CHOSEN.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import torch
from torch import Tensor

from ...types import DraftBatch, Kind, Topology
from ..verify import Rule
from .editing import cut
from .select import best_lengths, keep_best, masked, own_scores, shifted_scores


class Score(Enum):
    """How a drawn token is valued."""

    SHIFTED = "shifted"  # by its distribution and the tokens before it: exact
    PUBLISHED = "published"  # by its own probability: BIASED for targets that sample


def distribution_scores(drafts: DraftBatch, score: Score = Score.SHIFTED) -> Tensor:
    """[B, N] log-scores of drawn chains. The distribution of node j lies at row j: after the node above it."""
    assert drafts.distributions is not None
    own, top = [], []
    for node in range(drafts.width):
        distribution = drafts.distributions.at(torch.full_like(drafts.length, node))
        own.append(distribution.prob(drafts.token[:, node]))
        top.append(distribution.dense().amax(dim=1) if score is Score.SHIFTED else own[-1])
    log_q = torch.stack(own, dim=1).clamp(min=torch.finfo(torch.float32).tiny).log()
    if score is Score.PUBLISHED:
        return own_scores(log_q)
    return shifted_scores(log_q, torch.stack(top, dim=1).log())


def can_cut(drafts: DraftBatch, rule: Rule) -> bool:
    """Whether the drafts carry what cutting needs, and the rule stays exact with what is left.

    A drawn tree is cut only under rules that are blind to its kind. For another rule it would have to be CHOSEN when it
    is cut and drawn when it is not, and whether it is cut may depend on what was drawn: one that is exact for either
    kind is then still biased.
    """
    if not drafts.width or drafts.node_kind is not None:
        return False
    if drafts.topology is Topology.CHAIN and drafts.kind is not Kind.CHOSEN:
        return drafts.distributions is not None
    if drafts.value is None or drafts.started is not None:
        return False
    chosen = drafts.kind is Kind.CHOSEN and rule.exact_with(frozenset({Kind.CHOSEN}), drafts.topology)
    return chosen or rule.blind


def cut_to(drafts: DraftBatch, capacity: int, score: Score = Score.SHIFTED) -> DraftBatch:
    """The best `capacity` nodes of all sequences together."""
    if sum(drafts.lengths()) <= capacity:
        return drafts
    if drafts.topology is Topology.TREE or drafts.kind is Kind.CHOSEN:
        left = keep_best(drafts, capacity)
        return replace(left, lengths_host=tuple(left.length.tolist()))
    lengths = best_lengths(masked(distribution_scores(drafts, score), drafts.length), capacity)
    return cut(drafts, lengths.tolist())
