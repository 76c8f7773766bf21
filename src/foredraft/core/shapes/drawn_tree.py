"""Trees of drawn candidates for the multi-draft rules: independent draws, and top tokens with one draw beside them.

Draws without replacement are `StaticTree(drawn=True)`. How many draws a node gets is fixed by the layout, the budget
and the draws above it, never by its own draws (DESIGN invariant 5).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...types import Budget, DraftBatch, Kind
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder, column, tightened
from ..trees.candidates import Candidates, independent_draws, top_then_drawn
from .static_tree import FixedTree, Layout, Level, layout_of
from .step import Step, Stepper


@dataclass(frozen=True, slots=True)
class TopThenDrawnTree(FixedTree):
    """Below a node of level d - 1: the branching[d - 1] - 1 most likely tokens and one draw from the others.

    A budget makes groups of siblings smaller before anything is drawn; none of them loses its drawn member.
    """

    branching: tuple[int, ...] = (4, 2, 2)
    drawn: bool = True

    @property
    def kind(self) -> Kind:
        return Kind.TOP_THEN_SAMPLED

    @property
    def layout(self) -> Layout:
        return layout_of(self.branching)

    def _children(self, step: Step, level: Level, limit: Tensor, rng: Rng, node: Tensor) -> Candidates:
        return top_then_drawn(step, level.counts(limit), rng, node)


@dataclass(frozen=True, slots=True)
class IndependentTree(FixedTree):
    """Every draw of level d - 1 is continued by branching[d - 1] independent draws; (8, 1, 1) are eight sequences.

    Draws that are equal after equal ones become one node that counts them, and is continued as often as they were.
    So the layout numbers draws, of which there are at least as many as nodes; a budget of nodes is one of draws.
    """

    branching: tuple[int, ...] = (4, 2, 2)
    drawn: bool = True

    @property
    def kind(self) -> Kind:
        return Kind.SAMPLED_IID

    @property
    def layout(self) -> Layout:
        return layout_of(self.branching)

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        lengths = [self.layout.within(budget) for budget in budgets]
        if max(lengths) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        growing = _Merging(TreeBuilder(stepper), rng, column(lengths, stepper.device))
        for depth, level in enumerate(self.layout.levels(max(lengths)), start=1):
            growing.draw(level, depth)
        drafts = growing.builder.pick(growing.builder.values(), max(lengths), self.kind, max(lengths))
        assert drafts.source is not None
        return tightened(replace(drafts, multiplicity=torch.cat(growing.times, dim=1).gather(1, drafts.source)))


class _Merging:
    """A tree of independent draws under construction, level by level."""

    def __init__(self, builder: TreeBuilder, rng: Rng, limit: Tensor) -> None:
        self.builder, self.rng, self.limit = builder, rng, limit
        self.step = builder.root()
        self.node = torch.full_like(limit, -1)  # [B, w] nodes that `step` has read
        self.value = torch.zeros_like(limit, dtype=torch.float32)
        self.at = torch.zeros_like(limit)  # [B, draws] column of the node that each draw with children belongs to
        self.times: list[Tensor] = []  # [B, w] draws of each node, by level

    def draw(self, level: Level, depth: int) -> None:
        """All draws of a level; equal ones become one node, in the order of the first of them."""
        key = level.first + torch.arange(len(level.column), device=self.limit.device).expand(len(self.limit), -1)
        there, parent = key < self.limit, self.at[:, level.column]
        probs = self.step.dense()
        token = independent_draws(probs, parent, there, self.rng, key)
        chance = probs[torch.arange(len(key), device=key.device)[:, None], parent, token]
        same = (parent[:, :, None] == parent[:, None, :]) & (token[:, :, None] == token[:, None, :])
        same = same & there[:, :, None] & there[:, None, :]
        first = same.to(torch.int8).argmax(dim=2)  # of equal draws
        leads = (first == key - level.first) & there
        order = torch.argsort((~leads).to(torch.int8), dim=1, stable=True)[:, : int(leads.sum(dim=1).max())]
        value = self.value.gather(1, parent) + (chance * leads).log()
        node = self._add(order, self.node.gather(1, parent), self.step.target_ids(token), value, depth)
        self.times.append(same.sum(dim=2).gather(1, order))
        if level.inner:
            place = (leads.cumsum(dim=1) - 1).clamp(min=0).gather(1, first)[:, level.inner]
            self._read(node, value.gather(1, order), place, there[:, level.inner])

    def _add(self, order: Tensor, parent: Tensor, token: Tensor, value: Tensor, depth: int) -> Tensor:
        parent, token, value = (each.gather(1, order) for each in (parent, token, value))
        return self.builder.add(parent, token, value, depth)

    def _read(self, node: Tensor, value: Tensor, place: Tensor, there: Tensor) -> None:
        """The distributions after the nodes that are continued: the first ones, as draws with children come first."""
        width = int((place * there).max()) + 1
        self.node, self.value = node[:, :width], value[:, :width]
        self.at = place.clamp(max=width - 1)
        self.step = self.builder.read(self.builder.frontier(self.node))
