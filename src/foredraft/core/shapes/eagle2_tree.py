"""EAGLE-2's dynamic tree: grow where the product of draft confidences is largest, then keep the best nodes of all.

A child is never more likely than its parent, so the best M nodes always hold their ancestors. Children are chosen, not
drawn, so the tree is CHOSEN; draft distributions are not needed for it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.drafting.tree_growth import can_grow
from ...types import Budget, DraftBatch, Kind, Topology
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder
from ..trees.host_builder import Prices, on_host
from .base import Chain, Shape
from .eagle2_growth import Growth
from .step import Step, Stepper


def level_width(shape: Shape) -> int | None:
    """Nodes of a level that are read at once, of shapes that grow level by level from top tokens; None = another."""
    return shape.width if isinstance(shape, Eagle2Tree) else 1 if isinstance(shape, Chain) else None


@dataclass(frozen=True, slots=True)
class Eagle2Tree:
    """`width` nodes are read per level and each offers its `width` most likely tokens; the best `nodes` of all stay."""

    nodes: int = 32
    width: int = 8
    depth: int = 6
    kind: Kind = Kind.CHOSEN
    topology: Topology = Topology.TREE

    @property
    def reads(self) -> int:
        return self.width * (self.depth - 1)

    @property
    def numbered(self) -> int:
        return self.width + (self.depth - 1) * self.width**2

    @on_host
    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        depth = min(self.depth, max(budget.depth for budget in budgets))
        if max(budget.chain for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        builder = TreeBuilder(stepper)
        root = builder.root()
        if can_grow(root.logits, self.width) and self._whole(budgets):
            return self.grow_fused(stepper, root)
        value, token = (found[:, 0] for found in root.top(self.width))  # [B, k]
        node = builder.add(torch.full_like(token, -1), token, value, 1)
        for level in range(2, depth + 1):
            if not self.goes_on(builder, value, level):
                break
            more, token = builder.read(builder.frontier(node)).top(self.width)  # [B, k, k]
            parent = node[:, :, None].expand_as(more).flatten(1)
            value = (value[:, :, None] + more).flatten(1)
            made = builder.add(parent, token.flatten(1), value, level)
            best = value.topk(min(self.width, value.shape[1]), dim=1).indices.sort(dim=1).values
            node, value = made.gather(1, best), value.gather(1, best)
        return builder.best(self.nodes, self.within(builder, budgets), self.kind, self.width)

    def grow_fused(self, stepper: Stepper, root: Step) -> DraftBatch:
        """The same by kernels, where every sequence may have the whole tree."""
        growth = Growth.begin(stepper.batch, self.numbered, self.width, stepper.device)
        growth.add(root)
        for _ in range(2, self.depth + 1):
            growth.add(stepper.expand(growth.frontier()))
        return growth.best(self.nodes, self.kind)

    def _whole(self, budgets: Seq[Budget]) -> bool:
        """Whether neither the budget of a sequence nor a rule of a subclass makes its tree smaller."""
        if type(self) is not Eagle2Tree:
            return False
        return self.numbered >= self.nodes and all(b.nodes >= self.nodes and b.depth >= self.depth for b in budgets)

    def goes_on(self, builder: TreeBuilder, value: Tensor, level: int) -> bool:
        """Whether another level shall be read, given the values [B, w] of those that it would be read after."""
        return True

    def within(self, builder: TreeBuilder, budgets: Seq[Budget]) -> Seq[Budget]:
        """What of the grown tree may be handed over."""
        return budgets

    def prices(self) -> Prices | None:
        """The same two decisions for one sequence in numbers, where they go by seconds."""
        return None
