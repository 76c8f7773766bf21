"""OPT-Tree (Wang et al., 2024): the tree of n nodes of largest expected accepted length, as estimated by the draft.

The estimate is the sum of the values (products of draft probabilities along the path) of the best n nodes. Layers are
added as long as the last one raised it by more than `gain`, the cost of a draft call in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Budget, DraftBatch, Kind, Topology
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder, falling_ranks, most_nodes, tightened
from .step import Stepper

CANDIDATES = 32  # most likely tokens after a node that are looked at; more would cost a larger search a layer


@dataclass(frozen=True, slots=True)
class OptTree:
    """Every layer holds its `nodes` best; only those among the best `nodes` of all layers are read."""

    nodes: int = 25
    depth: int = 10
    gain: float = 0.5  # expected tokens that a layer must have brought for another one to follow
    kind: Kind = Kind.CHOSEN
    topology: Topology = Topology.TREE

    @property
    def reads(self) -> int:
        """Whoever is read at depth d is one of the best, and so are nodes of each of the d - 1 layers above."""
        return sum(max(0, self.nodes - above) for above in range(self.depth - 1))

    @property
    def numbered(self) -> int:
        return self.nodes * self.depth

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        depth, device = min(self.depth, max(budget.depth for budget in budgets)), stepper.device
        room = most_nodes(self.nodes, budgets, device)
        if max(budget.chain for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, device)
        limit = torch.tensor([[budget.depth] for budget in budgets], device=device)
        builder = TreeBuilder(stepper)
        value, token = (found[:, 0] for found in builder.root().top(self.nodes))
        node = builder.add(torch.full_like(token, -1), token, value, 1)
        growing, expected = room > 0, torch.zeros_like(value[:, :1])
        for level in range(2, depth + 1):
            before, expected = expected, expected_length(builder.columns()[2], room)
            growing = growing & (expected - before > self.gain) & (level <= limit)
            node, value = self._worth_reading(builder, node, room, growing)
            if node.shape[1] == 0:
                break
            more, token = builder.read(builder.frontier(node)).top(min(self.nodes, CANDIDATES))  # [B, w, k]
            below = torch.where(growing, (value[:, :, None] + more).flatten(1), -torch.inf)
            best = torch.argsort(below, dim=1, descending=True, stable=True)[:, : self.nodes]
            parent = node.gather(1, best // more.shape[2])
            node = builder.add(parent, token.flatten(1).gather(1, best), below.gather(1, best), level)
        return tightened(builder.best(self.nodes, budgets, self.kind, self.nodes))

    def _worth_reading(
        self, builder: TreeBuilder, layer: Tensor, room: Tensor, growing: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Nodes of the last layer among the best of all, and their values: others can have no best descendants.

        As many for every sequence as the one with most of them has; looks at that number from the host.
        """
        values = builder.columns()[2]
        inside = (falling_ranks(values) < room).gather(1, layer) & growing
        wide = int(inside.sum(dim=1).amax())
        own = values.gather(1, layer)
        best = torch.argsort(own, dim=1, descending=True, stable=True)[:, :wide]
        return layer.gather(1, best), own.gather(1, best)


def expected_length(value: Tensor, room: Tensor) -> Tensor:
    """[B, 1] sum of the room[b] largest of exp(value) [B, n]; an estimate of the drafted tokens that are accepted."""
    falling = value.sort(dim=1, descending=True).values.exp().cumsum(dim=1)
    last = (room - 1).clamp(min=0, max=value.shape[1] - 1)
    return torch.where(room > 0, falling.gather(1, last), 0.0)
