"""DySpec (Xiong et al., 2024): draw the next token where a verifier is most likely to look at it.

After every node waits one draw: the next sibling. A verifier that accepts as the draft model would, gets to look at it
with chance v = (product of q along the path) * (mass of q that earlier siblings left over). This is known before the
token is drawn, so growing by v is exact; growing by v * q(token), known afterwards, would bias the text (invariant 5).

Here the draws are made in order of v, and the draft model is called for a node when its first child is due, not before.
`core.shapes.dyspec_layers` makes all draws above a threshold, with one call per level.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Budget, DraftBatch, Kind, Topology
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder, most_nodes, tightened
from ..trees.candidates import Candidates, drawn_candidates, top_candidates
from .step import Frontier, Step, Stepper


class Drawing:
    """What both forms share. Without `drawn` the most likely tokens take the place of draws, and the tree is CHOSEN."""

    drawn: bool

    @property
    def kind(self) -> Kind:
        return Kind.SAMPLED_ADAPTIVELY if self.drawn else Kind.CHOSEN

    @property
    def topology(self) -> Topology:
        return Topology.TREE

    def candidates(
        self, step: Step, most: int, rng: Rng, node: Tensor, value: Tensor, floor: Tensor
    ) -> tuple[Candidates, Tensor]:
        """Candidates after nodes with log values [B, w], and v of each, 0 where there is none."""
        value = value.exp()
        found = drawn_candidates(step, most, rng, node, value, floor) if self.drawn else top_candidates(step, most)
        return found, torch.where(torch.isfinite(found.score), value[:, :, None] * found.left, 0.0)


@dataclass(frozen=True, slots=True)
class DySpec(Drawing):
    """`nodes` draws in order of v."""

    nodes: int = 32
    depth: int = 8
    drawn: bool = True

    @property
    def reads(self) -> int:
        return max(0, self.nodes - 1)

    @property
    def numbered(self) -> int:
        return self.nodes + 1

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        size = min(self.nodes, max(budget.nodes for budget in budgets))
        if max(budget.chain for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        waiting = _Waiting(self, stepper, budgets, rng, size)
        for _ in range(size):
            waiting.draw()
        builder = waiting.builder
        return tightened(builder.pick(builder.columns()[2], size, self.kind, size))


class _Waiting:
    """The draws that wait after the root (row 0) and after every node (row i + 1); the last row is nobody's."""

    def __init__(self, shape: DySpec, stepper: Stepper, budgets: Seq[Budget], rng: Rng, size: int) -> None:
        self.shape, self.rng, self.size = shape, rng, size
        self.builder, device = TreeBuilder(stepper), stepper.device
        self.room = most_nodes(shape.nodes, budgets, device)
        self.limit = torch.tensor([[min(shape.depth, budget.depth)] for budget in budgets], device=device)
        rows = torch.zeros((stepper.batch, size + 2), device=device)
        self.value = torch.full_like(rows, -torch.inf)
        self.value[:, 0] = 0.0
        self.depth = torch.zeros_like(rows, dtype=torch.int64)
        self.attempt = torch.zeros_like(self.depth)  # draws made so far
        self.read = torch.zeros_like(rows, dtype=torch.bool)
        tables = rows[:, :, None].expand(-1, -1, size + 1)  # one candidate more than anybody can need: none
        self.token, self.score = torch.zeros_like(tables, dtype=torch.int64), torch.full_like(tables, -torch.inf)
        self.chance = torch.zeros_like(tables)  # v
        self._put(torch.zeros_like(self.depth[:, :1]), self.builder.root())
        self.next = rows  # v of the draw that waits, 0 = none
        self.next[:, :1] = (self.limit > 0).to(rows.dtype)

    def draw(self) -> None:
        """Make the draw of largest v for every sequence; new draws wait after its node and beside it."""
        new = self.builder.size
        row = self.next.argmax(dim=1, keepdim=True)
        due = (self.next.gather(1, row) > 0) & (new < self.room)
        self._read_after(row, due)
        attempt = self.attempt.gather(1, row)
        value = torch.where(due, self.value.gather(1, row) + _at(self.score, row, attempt), -torch.inf)
        depth = self.depth.gather(1, row) + 1
        self.builder.add(row - 1, _at(self.token, row, attempt), value, depth)
        self.value[:, new + 1 : new + 2], self.depth[:, new + 1 : new + 2] = value, depth
        self.attempt.scatter_(1, row, attempt + 1)
        self.next.scatter_(1, row, _at(self.chance, row, attempt + 1) * due)
        self.next[:, new + 1 : new + 2] = torch.where(depth < self.limit, value.exp(), 0.0)

    def _read_after(self, row: Tensor, due: Tensor) -> None:
        """Ask for the distributions that are due and not there. The host looks: a call for nobody would cost more."""
        missing = due & ~self.read.gather(1, row)
        if not bool(missing.any()):
            return
        row = torch.where(missing, row, self.size + 1)
        front = self.builder.frontier((row - 1).clamp(max=self.builder.size - 1))
        token, parent = torch.where(missing, front.token, 0), torch.where(missing, front.parent, -1)
        self._put(row, self.builder.read(Frontier(row - 1, token, parent, torch.where(missing, front.depth, 1))))

    def _put(self, row: Tensor, step: Step) -> None:
        """Candidates after the nodes of some rows [B, 1], as far as any of them may still be due.

        Of the draws that are known already the best `size` go before any other of smaller v.
        """
        floor = self.chance.flatten(1).topk(self.size, dim=1).values[:, -1:]
        most, value = self.size - self.builder.size, self.value.gather(1, row)
        found, chance = self.shape.candidates(step, most, self.rng, row - 1, value, floor)
        index = row[:, :, None].expand_as(chance)
        for table, new in ((self.token, found.token), (self.score, found.score), (self.chance, chance)):
            table[:, :, : chance.shape[2]].scatter_(1, index, new)
        self.read.scatter_(1, row, True)


def _at(table: Tensor, row: Tensor, attempt: Tensor) -> Tensor:
    """[B, 1] entries of [B, rows, attempts]."""
    who = torch.arange(len(row), device=row.device)[:, None]
    return table[who, row, attempt]
