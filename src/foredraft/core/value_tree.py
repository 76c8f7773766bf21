"""EAGLE-2's dynamic tree: grow where the product of draft confidences is largest, then keep the best nodes of all.

A child is never likelier than its parent, so the best M nodes always hold their ancestors. Children are chosen, not
drawn, so the tree is CHOSEN; draft laws are not needed for it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Budget, DraftBatch, Kind, Topology
from ..types.drafts import empty_drafts
from .dice import Dice
from .shape import Frontier, Stepper
from .surgery import cut


@dataclass(frozen=True, slots=True)
class ValueTree:
    """`width` nodes are read per level and each offers its `width` likeliest tokens; the best `nodes` of all stay."""

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

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        depth = min(self.depth, max(budget.depth for budget in budgets))
        if depth <= 0 or max(budget.nodes for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        pool = _Pool(stepper.batch, stepper.device)
        value, token = (found[:, 0] for found in stepper.root().top(self.width))  # [B, k]
        pool.add(torch.full_like(token, -1), token, value, 1)
        node = pool.last(token.shape[1])
        for level in range(2, depth + 1):
            step = stepper.expand(Frontier(node, *pool.at(node)))
            more, token = step.top(self.width)  # [B, k, k]
            value = (pool.values(node)[:, :, None] + more).flatten(1)
            parent = node[:, :, None].expand_as(more).flatten(1)
            first = pool.size
            pool.add(parent, token.flatten(1), value, level)
            node = first + value.topk(min(self.width, value.shape[1]), dim=1).indices.sort(dim=1).values
        return self._best(pool, budgets)

    def _best(self, pool: _Pool, budgets: Seq[Budget]) -> DraftBatch:
        """The best nodes in the order in which they were made, relinked; deeper ones lose ties."""
        parent, token, value, depth = pool.columns()
        allowed = torch.tensor([b.depth for b in budgets], device=value.device)[:, None]
        value = torch.where(depth <= allowed, value, -torch.inf)
        chosen = torch.argsort(value, dim=1, descending=True, stable=True)[:, : self.nodes].sort(dim=1).values
        place = torch.full_like(token, -1)
        here = torch.arange(chosen.shape[1], device=token.device).expand_as(chosen)
        place.scatter_(1, chosen, here)
        above = parent.gather(1, chosen)
        relinked = torch.where(above >= 0, place.gather(1, above.clamp(min=0)), -1)
        drafts = DraftBatch(
            token=token.gather(1, chosen),
            parent=relinked,
            depth=depth.gather(1, chosen),
            order=_ranks(relinked),
            length=torch.isfinite(value.gather(1, chosen)).sum(dim=1),
            kind=self.kind,
            branching=self.width,
            levels=int(pool.levels),
            value=value.gather(1, chosen).exp(),
            source=chosen,
        )
        return cut(drafts, [b.nodes for b in budgets]) if any(b.nodes < self.nodes for b in budgets) else drafts


class _Pool:
    """All candidate nodes of a batch, [B, n] columns in order of making."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.size = self.levels = 0
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.batch, self.device = batch, device

    def add(self, parent: Tensor, token: Tensor, value: Tensor, level: int) -> None:
        self._parts.append((parent, token, value, torch.full_like(token, level)))
        self.size, self.levels = self.size + token.shape[1], level

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if len(self._parts) > 1:
            self._parts = [tuple(torch.cat(column, dim=1) for column in zip(*self._parts, strict=True))]  # type: ignore[list-item]
        return self._parts[0]

    def last(self, count: int) -> Tensor:
        return torch.arange(self.size - count, self.size, device=self.device).expand(self.batch, count)

    def at(self, node: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, parents and depths of nodes."""
        parent, token, _, depth = self.columns()
        return token.gather(1, node), parent.gather(1, node), depth.gather(1, node)

    def values(self, node: Tensor) -> Tensor:
        return self.columns()[2].gather(1, node)


def _ranks(parent: Tensor) -> Tensor:
    """[B, N] rank of each node among its siblings, in order of making."""
    same = parent[:, :, None] == parent[:, None, :]
    earlier = torch.ones_like(same[0]).tril(-1)
    return (same & earlier).sum(dim=2)
