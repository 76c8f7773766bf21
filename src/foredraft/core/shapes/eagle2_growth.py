"""A batch of EAGLE-2 trees that grow on a GPU, one launch a level; `Eagle2Tree.grow` is the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.drafting.tree_growth import grow_level, pick_best
from ...types import DraftBatch, Kind
from .step import Frontier, Step


@dataclass(slots=True)
class Growth:
    """All nodes of a batch of trees in the order in which they are made, and those that are read next."""

    token: Tensor  # [B, numbered]
    parent: Tensor  # [B, numbered]
    value: Tensor  # [B, numbered] float32
    width: int
    size: int = 0
    levels: int = 0
    front: Tensor | None = None  # [5, B, width] as a `Frontier` has them
    front_value: Tensor | None = None  # [B, width]

    @classmethod
    def begin(cls, batch: int, numbered: int, width: int, device: torch.device) -> Growth:
        token, parent = torch.empty((2, batch, numbered), dtype=torch.int64, device=device).unbind(0)
        return cls(token, parent, torch.empty((batch, numbered), device=device), width)

    def add(self, step: Step) -> None:
        """Add the candidates after the nodes that were read, or after the root; the best of them are the next front."""
        above = None if self.front is None or self.front_value is None else (self.front, self.front_value)
        nodes = self.token, self.parent, self.value
        self.levels += 1
        found = step.top_rows(self.width)
        self.front, self.front_value = grow_level(found, step.rows, above, nodes, self.size, self.levels)
        self.size += step.rows.shape[1] * self.width

    def frontier(self) -> Frontier:
        assert self.front is not None
        return Frontier(*self.front.unbind(0))

    def best(self, nodes: int, kind: Kind) -> DraftBatch:
        """The `nodes` largest values of every sequence in the order of making; of equal ones those made first."""
        batch, device = len(self.token), self.token.device
        out, value = pick_best(self.token, self.parent, self.value, nodes, self.width)
        token, parent, depth, order, source = out.unbind(0)
        length = torch.full((batch,), nodes, dtype=torch.int64, device=device)
        return DraftBatch(
            token, parent, depth, order, length, kind, self.width, self.levels, value=value, source=source,
            lengths_host=(nodes,) * batch,
        )  # fmt: skip
