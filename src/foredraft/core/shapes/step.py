"""The seam between shapes and the models that draft: what a shape asks for, and what it gets to see.

A shape asks for the distributions after nodes; it sees logits and states of the draft model, never the target's rows.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.top_k_search import IMPOSSIBLE, can_search, top_tokens_fused
from ...types import Distribution, Distributions
from ..distributions.sampling import LogitDistributions, ParamBlock, distribution_of
from ..distributions.tensors import LazyDistributions, MappedDistribution, PointMass, PointMasses
from ..distributions.top_k import argmax, find_top_k


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A drafter's own vocabulary in target ids."""

    ids: Tensor  # [Vd] target id of each draft id
    index: Tensor  # [V] draft id of each target id, -1 where there is none


@dataclass(frozen=True, slots=True)
class Step:
    """What a drafter knows after one call: a distribution and a state after each of w nodes of every sequence."""

    logits: Tensor  # [M, Vd] packed
    rows: Tensor  # [B, w] packed row of each node
    block: ParamBlock  # the draft's own sampling options
    hidden: Tensor | None = None  # [M, d] packed, for learned stop rules
    vocabulary: Vocabulary | None = None  # None = the target's

    def distribution(self, column: int) -> Distribution:
        """The draft distribution after the node in that column, in target ids."""
        distribution: Distribution
        if self.block.all_greedy:  # every launch counts
            rows = self.logits_of(column)
            distribution = PointMass(argmax(rows), rows.shape[1])
        else:
            distribution = distribution_of(self.logits_of(column).to(torch.float32), self.block)
        return (
            distribution
            if self.vocabulary is None
            else MappedDistribution(distribution, self.vocabulary.ids, self.vocabulary.index)
        )

    def logits_of(self, column: int) -> Tensor:
        """[B, Vd] after the node in that column; not copied where there are no others."""
        return self.logits if self.whole and self.rows.shape[1] == 1 else self.logits[self.rows[:, column]]

    @property
    def whole(self) -> bool:
        """Whether every packed row belongs to a node: then they lie in the order of the nodes."""
        return self.rows.numel() == len(self.logits)

    def dense(self) -> Tensor:
        """[B, w, Vd] the draft distributions after all nodes, in the drafter's own ids."""
        batch, width = self.rows.shape
        who = torch.arange(batch, device=self.rows.device).repeat_interleave(width)
        distribution = distribution_of(self.logits[self.rows.flatten()].to(torch.float32), self.block.choose(who))
        return distribution.dense().view(batch, width, -1)

    def target_ids(self, ids: Tensor) -> Tensor:
        """The drafter's own ids, any shape, as the target knows them."""
        return ids if self.vocabulary is None else self.vocabulary.ids[ids]

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most likely tokens after every node: log-probabilities at temperature 1 and target ids, [B, w, k].

        A smaller vocabulary gives fewer; an impossible token gets a very small value, so that values stay finite.
        """
        values, ids = self.top_rows(k)
        return values[self.rows], ids[self.rows]

    def top_rows(self, k: int) -> tuple[Tensor, Tensor]:
        """The same for every packed row, [M, k]."""
        k = min(k, self.logits.shape[1])
        if can_search(self.logits, k):
            return top_tokens_fused(self.logits, k, None if self.vocabulary is None else self.vocabulary.ids)
        logits = self.logits.to(torch.float32)
        values, ids = find_top_k(logits, k)
        values = values - torch.logsumexp(logits, dim=1, keepdim=True)
        values = torch.nan_to_num(values, nan=IMPOSSIBLE).clamp(min=IMPOSSIBLE)  # a broken drafter guesses too
        return values, self.target_ids(ids)


@dataclass(frozen=True, slots=True)
class TopStep(Step):
    """One of which only the top words are known: whoever made it has not worked out all probabilities."""

    values: Tensor = field(kw_only=True)  # [M, k] as `top_rows` gives them
    ids: Tensor = field(kw_only=True)

    def top_rows(self, k: int) -> tuple[Tensor, Tensor]:
        assert k <= self.ids.shape[1]
        return self.values[:, :k], self.ids[:, :k]

    def logits_of(self, column: int) -> Tensor:
        raise AssertionError("a step of top words has no distribution")

    def dense(self) -> Tensor:
        raise AssertionError("a step of top words has no distribution")


def draft_distributions(steps: Seq[Step], row_of: Tensor) -> Distributions:
    """The distributions of several calls by tree row. row_of [B, R]: column of each row, counted through all calls."""
    logits = torch.cat([step.logits for step in steps])
    starts = [0]
    for step in steps:
        starts.append(starts[-1] + step.logits.shape[0])
    packed = torch.cat([step.rows + start for step, start in zip(steps, starts, strict=False)], dim=1)
    distributions = LogitDistributions(logits, packed.gather(1, row_of), steps[0].block)
    words = steps[0].vocabulary
    return (
        distributions
        if words is None
        else LazyDistributions(lambda row: MappedDistribution(distributions.at(row), words.ids, words.index))
    )


def chain_distributions(steps: Seq[Step], token: Tensor) -> Distributions:
    """The distributions of chains [B, N], of which each call read one node more."""
    first, size = steps[0], token.shape[1]
    if first.block.all_greedy:
        return PointMasses(token, first.logits.shape[1] if first.vocabulary is None else len(first.vocabulary.index))
    # Row i lies after node i - 1; nobody asks for the row after the last one.
    row_of = torch.arange(size + 1, device=token.device).clamp(max=size - 1)
    return draft_distributions(steps, row_of.expand(len(token), -1))


@dataclass(frozen=True, slots=True)
class Frontier:
    """Nodes that the draft model shall read next, w per sequence. All [B, w] int64."""

    node: Tensor  # indices in the tree under construction
    token: Tensor
    parent: Tensor  # indices, -1 = root
    depth: Tensor  # 1 = child of the root
    above: Tensor | None = None  # column of the parent in the frontier before (0 = the root); None = it may be anywhere


class Stepper(Protocol):
    """A model drafter during one round, bound to its sequences."""

    batch: int
    ids: tuple[int, ...]  # of the sequences, for rules that remember them from round to round
    device: torch.device

    def root(self) -> Step:
        """The distribution after the pending token (one column)."""

    def expand(self, frontier: Frontier) -> Step:
        """Read nodes whose parents have been read (or are the root); distributions after each of them."""
