"""DySpec level by level: all draws that a verifier looks at with chance v >= threshold, with one draft call per level.

See `core.shapes.dyspec` for v. With the smallest v of a tree grown there as threshold, and the same draws, both trees
are the same: v never rises from a draw to the draws that follow it, so "the best n" and "all above the n-th" are one
set.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from ...errors import UsageError
from ...types import Budget, DraftBatch
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder, falling_ranks, most_nodes, tightened
from .dyspec import Drawing
from .step import Step, Stepper

REMEMBERED = 1024  # sequences whose thresholds are kept: shapes are not informed when one ends


@dataclass(slots=True)
class DySpecLayers(Drawing):
    """Where a level has more draws above the threshold than the tree has room for, those of largest v are made.

    At most `width` nodes are read per level, the most likely ones. With `adapt` each sequence moves its threshold so
    that its trees come to have `nodes` nodes: log t += adapt * log(draws above t / nodes).
    """

    nodes: int = 32
    width: int = 16
    depth: int = 8
    drawn: bool = True
    threshold: float | None = None  # None = 1 / nodes
    adapt: float = 0.0  # 0 = the threshold stays
    _thresholds: dict[int, float] = field(default_factory=dict, init=False, repr=False)  # by sequence id

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UsageError(f"a threshold of {self.threshold} is no chance between 0 and 1")

    @property
    def reads(self) -> int:
        return self.width * (self.depth - 1)

    @property
    def numbered(self) -> int:
        return self.nodes * self.depth

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        if max(budget.chain for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        layers = _Layers(self, stepper, budgets, rng)
        step, level = layers.builder.root(), 1
        while layers.draw(step, level):
            step, level = layers.read(), level + 1
        if self.adapt:
            self._learn(stepper.ids, budgets, layers.above[:, 0].tolist())
        builder = layers.builder
        return tightened(builder.pick(builder.columns()[2], self.nodes, self.kind, self.nodes))

    def threshold_of(self, sequence: int) -> float:
        return self._thresholds.get(sequence, self.threshold or 1 / self.nodes)

    def _learn(self, ids: Seq[int], budgets: Seq[Budget], above: list[int]) -> None:
        for sequence, budget, count in zip(ids, budgets, above, strict=True):
            if budget.nodes >= self.nodes and budget.depth >= self.depth:  # else the budget made the tree small
                moved = self.threshold_of(sequence) * (count / self.nodes) ** self.adapt
                self._thresholds.pop(sequence, None)  # dicts keep their order: the newest come last
                self._thresholds[sequence] = min(1.0, moved)
        for forgotten in list(self._thresholds)[:-REMEMBERED]:
            del self._thresholds[forgotten]


class _Layers:
    """A tree under construction, and the nodes of its last level."""

    def __init__(self, shape: DySpecLayers, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> None:
        self.shape, self.rng, self.builder = shape, rng, TreeBuilder(stepper)
        self.floor = torch.tensor([[shape.threshold_of(id)] for id in stepper.ids], device=stepper.device)
        self.limit = torch.tensor([[min(shape.depth, budget.depth)] for budget in budgets], device=stepper.device)
        self.room = most_nodes(shape.nodes, budgets, stepper.device)
        self.above = torch.zeros_like(self.room)  # draws with v above the threshold, also where there was no room
        self.made = torch.zeros_like(self.room)
        self.node = torch.full_like(self.room, -1)
        self.number = self.node  # as `node`, counted in the sequence's own tree: rng must not know of batch mates
        self.value = torch.zeros_like(self.floor)
        self.onward = 0  # nodes of the last level that are worth reading, in the sequence that has most of them

    def draw(self, step: Step, level: int) -> bool:
        """The draws of one level, after the nodes that `step` has read; whether another level can follow.

        The host looks how many there are, once per level.
        """
        found, chance = self.shape.candidates(step, self.shape.nodes, self.rng, self.number, self.value, self.floor)
        chance = chance.flatten(1)
        wanted = (chance >= self.floor) & (level <= self.limit) & (self.room > 0)
        taken = wanted & (falling_ranks(torch.where(wanted, chance, 0.0)) < self.room)
        self.above = self.above + wanted.sum(dim=1, keepdim=True)
        self.room = self.room - taken.sum(dim=1, keepdim=True)
        value = torch.where(taken, (self.value[:, :, None] + found.score).flatten(1), -torch.inf)
        onward = (value.exp() >= self.floor) & (level < self.limit) & (self.room > 0)
        wide, self.onward = torch.stack((taken.sum(dim=1).amax(), onward.sum(dim=1).amax())).tolist()
        chosen = torch.argsort((~taken).to(torch.int8), dim=1, stable=True)[:, :wide]
        token, self.value = found.token.flatten(1).gather(1, chosen), value.gather(1, chosen)
        self.node = self.builder.add(self.node.gather(1, chosen // found.token.shape[2]), token, self.value, level)
        self.number = self.made + torch.arange(wide, device=self.made.device)
        self.made = self.made + taken.sum(dim=1, keepdim=True)
        return bool(self.onward)

    def read(self) -> Step:
        """The distributions after the most likely nodes of the last level."""
        wide = min(self.shape.width, self.onward)
        best = torch.argsort(self.value, dim=1, descending=True, stable=True)[:, :wide].sort(dim=1).values
        self.node, self.number, self.value = (x.gather(1, best) for x in (self.node, self.number, self.value))
        return self.builder.read(self.builder.frontier(self.node))
