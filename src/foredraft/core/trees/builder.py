"""Trees under construction: the nodes that a shape has made so far, which of them were read, and how they end up.

A value is the logarithm of the product of draft probabilities along a node's path, and -inf means that the node does
not exist: it fills a column that other sequences of the batch need. So values below a missing node are missing too.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...types import Budget, Distributions, DraftBatch, Kind
from ..shapes.step import Frontier, Step, Stepper, draft_distributions


class TreeBuilder:
    """All nodes of a batch of trees, [B, n] columns in the order in which they were made."""

    def __init__(self, stepper: Stepper) -> None:
        self.batch, self.device = stepper.batch, stepper.device
        self.size = self.levels = 0
        self._stepper = stepper
        self._steps: list[Step] = []
        self._read: list[Tensor] = []  # [B, w] nodes of each call but the first
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def root(self) -> Step:
        """The distribution after the pending token; asked for once, before anything else."""
        self._steps.append(self._stepper.root())
        return self._steps[0]

    def add(self, parent: Tensor, token: Tensor, value: Tensor, depth: Tensor | int) -> Tensor:
        """New nodes, w per sequence; their indices [B, w]."""
        begin, self.size = self.size, self.size + token.shape[1]
        self.levels = depth if isinstance(depth, int) else self.size
        depth = torch.full_like(token, depth) if isinstance(depth, int) else depth
        self._parts.append((parent, token, value, depth))
        return torch.arange(begin, self.size, device=self.device).expand(self.batch, -1)

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Parents, tokens, values and depths of all nodes."""
        if len(self._parts) > 1:
            parent, token, value, depth = (torch.cat(part, dim=1) for part in zip(*self._parts, strict=True))
            self._parts = [(parent, token, value, depth)]
        return self._parts[0]

    def values(self) -> Tensor:
        """[B, n] of all nodes."""
        return self.columns()[2]

    def frontier(self, node: Tensor) -> Frontier:
        parent, token, _, depth = (column.gather(1, node) for column in self.columns())
        return Frontier(node, token, parent, depth)

    def read(self, frontier: Frontier) -> Step:
        """The distributions after nodes. Node n of a tree that will have n nodes means "nothing to read here"."""
        self._read.append(frontier.node)
        self._steps.append(self._stepper.expand(frontier))
        return self._steps[-1]

    def within(self, budgets: Seq[Budget]) -> Tensor:
        """[B, n] values, missing where a node is deeper than its sequence may draft."""
        _, _, value, depth = self.columns()
        allowed = column([budget.depth for budget in budgets], self.device)
        return torch.where(depth <= allowed, value, -torch.inf)

    def pick(self, value: Tensor, most: int, kind: Kind, branching: int) -> DraftBatch:
        """The nodes that still have a value, at most `most`, in the order of making. They must hold their ancestors.

        Siblings rank by that order. Drawn trees get their distributions.
        """
        parent, token, _, depth = self.columns()
        here = torch.isfinite(value)
        order = torch.argsort((~here).to(torch.int8), dim=1, stable=True)
        place, chosen = torch.argsort(order, dim=1), order[:, :most]
        above = parent.gather(1, chosen)
        above = torch.where(above >= 0, place.gather(1, above.clamp(min=0)), -1)
        return DraftBatch(
            token=token.gather(1, chosen),
            parent=above,
            depth=depth.gather(1, chosen),
            order=_ranks(above),
            length=here.sum(dim=1),
            kind=kind,
            branching=branching,
            levels=self.levels,
            distributions=None if kind == Kind.CHOSEN else self._distributions(chosen),
            value=value.gather(1, chosen).exp(),
            source=chosen,
        )

    def best(self, nodes: int, budgets: Seq[Budget], kind: Kind, branching: int) -> DraftBatch:
        """The `nodes` largest values of every sequence within its budget; of equal ones those made first."""
        value = self.within(budgets)
        value = torch.where(falling_ranks(value) < most_nodes(nodes, budgets, self.device), value, -torch.inf)
        return self.pick(value, nodes, kind, branching)

    def _distributions(self, chosen: Tensor) -> Distributions:
        """The distribution after the root and after each chosen node; one that was not read gets any."""
        column_of = torch.zeros((self.batch, self.size + 1), dtype=torch.int64, device=self.device)
        if self._read:
            read = torch.cat(self._read, dim=1)
            column_of.scatter_(1, read, torch.arange(1, read.shape[1] + 1, device=self.device).expand_as(read))
        rows = torch.cat((column_of.new_zeros((self.batch, 1)), column_of.gather(1, chosen)), dim=1)
        return draft_distributions(self._steps, rows)


def most_nodes(nodes: int, budgets: Seq[Budget], device: torch.device) -> Tensor:
    """[B, 1] nodes that each sequence may have."""
    return column([max(0, min(nodes, budget.nodes)) for budget in budgets], device)


def column(values: Seq[int], device: torch.device) -> Tensor:
    """[B, 1] from the host; equal values need no copy, which a device would wait for."""
    if len(set(values)) == 1:
        return torch.full((len(values), 1), values[0], device=device)
    return torch.tensor(values, device=device)[:, None]


def falling_ranks(value: Tensor) -> Tensor:
    """[B, n] place of each entry when they are sorted from the largest on; equal ones keep their order."""
    return torch.argsort(torch.argsort(value, dim=1, descending=True, stable=True), dim=1)


def tightened(drafts: DraftBatch) -> DraftBatch:
    """The same drafts without columns that nobody uses, and bounds that the host knows exactly. Copies to the host."""
    if drafts.width == 0:
        return replace(drafts, lengths_host=(0,) * drafts.batch)
    used = drafts.used()
    widest, deepest = ((column * used).amax(dim=1) for column in (drafts.order + 1, drafts.depth))
    lengths, orders, depths = torch.stack((drafts.length, widest, deepest)).tolist()
    width = max(lengths)
    names = ("token", "parent", "depth", "order", "value", "source", "multiplicity")
    columns = {name: column[:, :width] for name in names if (column := getattr(drafts, name)) is not None}
    bounds = {"branching": max(1, *orders), "levels": max(depths), "lengths_host": tuple(lengths)}
    return replace(drafts, **columns, **bounds)


def _ranks(parent: Tensor) -> Tensor:
    """[B, N] rank of each node among its siblings, in order of making."""
    same = parent[:, :, None] == parent[:, None, :]
    earlier = torch.ones_like(same[0]).tril(-1)
    return (same & earlier).sum(dim=2)
