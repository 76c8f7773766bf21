"""Trees of a fixed layout: which rank of its parent's candidates each node takes never changes.

A layout is a list of rank paths, such as 0, 1, 00, 01: the top token, the second one, and two after the first.
Children are chosen by rank, or drawn without replacement; then rank is the order of the draws.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from ...errors import UsageError
from ...types import Budget, DraftBatch, Kind, Topology
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder, column, tightened
from ..trees.candidates import Candidates, drawn_candidates, top_candidates
from ..trees.layout import depths_of, sibling_ranks, static_tree
from .step import Step, Stepper

Paths = tuple[tuple[int, ...], ...]


def rank_paths(text: str) -> Paths:
    """Paths of ranks below ten, written like "0 1 00 01"."""
    return tuple(tuple(map(int, path)) for path in text.split())


LANTERN_PATHS = rank_paths(  # the default of LANTERN++: flat distributions give dynamic trees nothing to go by
    "0 1 2 3  00 01 02 10 11 20 21 30  000 001 002 010 011 020 021 100  0000 0001 0002  00000 00001"
)


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth. Their parents were read together, each in a column of its own."""

    first: int  # index of the first of them
    column: list[int]  # of each node's parent
    rank: list[int]
    inner: list[int]  # places of those that have children themselves

    def counts(self, lengths: Tensor) -> Tensor:
        """[B, w] children of each parent where sequence b has the first lengths[b] nodes of all; lengths [B, 1]."""
        there = self.first + torch.arange(len(self.column), device=lengths.device) < lengths
        column = torch.tensor(self.column, device=lengths.device).expand_as(there)
        none = torch.zeros((len(lengths), max(self.column) + 1), dtype=torch.int64, device=lengths.device)
        return none.scatter_add_(1, column, there.to(torch.int64))


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a tree, level by level."""

    parent: tuple[int, ...]
    rank: tuple[int, ...]

    def within(self, budget: Budget) -> int:
        """How many of the nodes, from the first on, a budget allows."""
        return max(0, min(budget.nodes, sum(depth <= budget.depth for depth in depths_of(self.parent))))

    def levels(self, count: int) -> list[Level]:
        """The first `count` nodes."""
        parent, depth = self.parent[:count], depths_of(self.parent[:count])
        found, above = [], [-1]
        for level in range(1, max(depth) + 1):
            nodes = [i for i, d in enumerate(depth) if d == level]
            columns = [above.index(parent[i]) for i in nodes]
            above = [i for i in nodes if i in parent]
            found.append(Level(nodes[0], columns, [self.rank[i] for i in nodes], [i - nodes[0] for i in above]))
        return found


@cache
def layout_of(shape: tuple[int, ...] | Paths) -> Layout:
    """From branching counts per level or from rank paths (`core.trees.layout.static_tree`)."""
    made = static_tree(shape)
    return Layout(tuple(made.parent), tuple(made.rank))


class DrawnOrTop:
    """Trees of tokens drawn without replacement, or of top tokens."""

    drawn: bool

    @property
    def kind(self) -> Kind:
        return Kind.SAMPLED_WITHOUT_REPLACEMENT if self.drawn else Kind.CHOSEN

    @property
    def topology(self) -> Topology:
        return Topology.TREE


class FixedTree(DrawnOrTop):
    """What trees of a fixed layout share, however the layout is written down."""

    @property
    def layout(self) -> Layout:
        raise NotImplementedError

    @property
    def nodes(self) -> int:
        return len(self.layout.parent)

    @property
    def reads(self) -> int:
        return len(set(self.layout.parent) - {-1})

    @property
    def numbered(self) -> int:
        return self.nodes

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        lengths = [self.layout.within(budget) for budget in budgets]
        if max(lengths) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        builder, limit = TreeBuilder(stepper), column(lengths, stepper.device)
        step = builder.root()
        node = torch.full((stepper.batch, 1), -1, dtype=torch.int64, device=stepper.device)
        value = torch.zeros((stepper.batch, 1), device=stepper.device)
        for depth, level in enumerate(self.layout.levels(max(lengths)), start=1):
            found = self._children(step, level, limit, rng, node)
            token, score = (each[:, level.column, level.rank] for each in (found.token, found.score))
            value = value[:, level.column] + score
            node = builder.add(node[:, level.column], token, value, depth)
            if level.inner:
                node, value = node[:, level.inner], value[:, level.inner]
                step = builder.read(builder.frontier(node))
        return self._finish(builder, lengths, step.logits.shape[1])

    def _children(self, step: Step, level: Level, limit: Tensor, rng: Rng, node: Tensor) -> Candidates:
        """Candidates after the nodes [B, w] of `step`; limit [B, 1] nodes of the layout that each sequence may have."""
        most = max(level.rank) + 1
        return drawn_candidates(step, most, rng, node) if self.drawn else top_candidates(step, most)

    def _finish(self, builder: TreeBuilder, lengths: list[int], words: int) -> DraftBatch:
        """The first nodes of every sequence, whatever their tokens are (invariant 5); missing nodes are dropped."""
        limit = column(lengths, builder.device)
        value = torch.where(torch.arange(builder.size, device=builder.device) < limit, builder.columns()[2], -torch.inf)
        branching = max(map(self.layout.parent.count, self.layout.parent))
        drafts = builder.pick(value, max(lengths), self.kind, branching)
        # The most likely tokens always exist where the vocabulary has enough; then the host knows all lengths already.
        enough = not self.drawn and words > max(self.layout.rank)
        return replace(drafts, lengths_host=tuple(lengths)) if enough else tightened(drafts)


@dataclass(frozen=True, slots=True)
class StaticTree(FixedTree):
    """A tree of rank paths, or of fixed branching: (4, 2, 2) gives every node of level d - 1 spec[d - 1] children.

    `drawn` children are sampled without replacement, others are the top tokens.
    """

    spec: Paths | tuple[int, ...] = (4, 2, 2)
    drawn: bool = False

    def __post_init__(self) -> None:
        if self.drawn and list(self.layout.rank) != sibling_ranks(self.layout.parent):
            raise UsageError("a drawn tree cannot leave out a rank: earlier draws that are dropped bias the later ones")

    @property
    def layout(self) -> Layout:
        return layout_of(self.spec)
