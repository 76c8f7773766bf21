"""Value trees on the host, in numpy: a small operation takes a microsecond there where a tensor's takes ten.

What `on_host` wraps and `Pool` are the slow twins. Nodes are numbered and chosen alike; of equal values the one
that was made first goes first, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..types import Budget, DraftBatch, Kind
from .dice import Dice
from .pool import Pool
from .step import Frontier, Stepper

Numbers = NDArray[Any]
Grow = Callable[[Any, Stepper, Seq[Budget], Dice], DraftBatch]


class Growing(Protocol):
    """What a value tree and its kin decide by themselves."""

    @property
    def nodes(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def kind(self) -> Kind: ...

    def goes_on(self, pool: Pool, value: Tensor, level: int) -> bool: ...
    def within(self, pool: Pool, budgets: Seq[Budget]) -> Seq[Budget]: ...


@dataclass(frozen=True, slots=True)
class Front:
    """The best nodes of a level, [B, w] each, in the order of making."""

    node: Numbers
    token: Numbers
    parent: Numbers
    above: Numbers  # column of the parent in the front before
    value: Numbers
    level: int

    def frontier(self) -> Frontier:
        depth = np.full_like(self.node, self.level)
        columns = (self.node, self.token, self.parent, depth, self.above)
        return Frontier(*(torch.from_numpy(column) for column in columns))


class HostPool(Pool):
    """A pool that grows level by level."""

    def __init__(self, stepper: Stepper, width: int) -> None:
        super().__init__(stepper)
        self.width = width
        self._who = np.arange(self.batch)[:, None]
        self._made: list[tuple[Numbers, Numbers, Numbers]] = []  # parents, tokens and values of each level

    def grow(self, front: Front | None, found: tuple[Tensor, Tensor]) -> Front:
        """Add the likeliest tokens behind a front (None = the root), [B, w, k] each; the best of them are the next."""
        more, token = (part.numpy() for part in found)
        (batch, wide, k), begin = more.shape, self.size
        node = np.full((batch, wide), -1) if front is None else front.node
        if front is not None:
            more = front.value[:, :, None] + more
        token, value = token.reshape(batch, -1), more.reshape(batch, -1)
        self.levels, self.size = self.levels + 1, begin + wide * k
        self._made.append((node.repeat(k, 1), token, value))
        best = falling(value)[:, : self.width]
        best.sort(axis=1)
        above = best // k
        return Front(
            best + begin, token[self._who, best], node[self._who, above], above, value[self._who, best], self.levels
        )

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parent, token, value, depth = (torch.from_numpy(column) for column in self._joined())
        return parent, token, value, depth

    def best(self, nodes: int, budgets: Seq[Budget], kind: Kind, branching: int) -> DraftBatch:
        parent, token, value, depth = self._joined()
        value = np.where(depth <= np.array([[budget.depth] for budget in budgets]), value, -np.inf)
        room = np.array([[max(0, min(nodes, budget.nodes))] for budget in budgets])
        here = (inverse(falling(value)) < room) & np.isfinite(value)
        order = np.argsort(~here, axis=1, kind="stable")
        place, chosen = inverse(order), order[:, :nodes]
        above = parent[self._who, chosen]
        above = np.where(above >= 0, place[self._who, above], -1)
        elder = np.tril(above[:, :, None] == above[:, None, :], -1).sum(axis=2)
        token, depth = token[self._who, chosen], depth[self._who, chosen]
        value = np.exp(np.where(here, value, -np.inf)[self._who, chosen])
        length = here.sum(axis=1)
        return DraftBatch(
            token=torch.from_numpy(token),
            parent=torch.from_numpy(above),
            depth=torch.from_numpy(depth),
            order=torch.from_numpy(elder),
            length=torch.from_numpy(length),
            kind=kind,
            branching=branching,
            levels=self.levels,
            value=torch.from_numpy(value),
            source=torch.from_numpy(chosen),
            lengths_host=tuple(length.tolist()),
        )

    def _joined(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Parents, tokens, values and depths of all nodes."""
        parent, token, value = (np.concatenate(part, axis=1) for part in zip(*self._made, strict=True))
        depth = np.repeat(np.arange(1, self.levels + 1), [part[0].shape[1] for part in self._made])
        return parent, token, value, np.broadcast_to(depth, token.shape).copy()


def on_host(grow: Grow) -> Grow:
    """A value tree's `grow`, done here where the drafter lives on the host; what it wraps is the slow twin."""

    @wraps(grow)
    def quicker(shape: Any, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        elsewhere = stepper.device.type != "cpu" or getattr(stepper, "recorded", False)
        if elsewhere or max(budget.chain for budget in budgets) <= 0:
            return grow(shape, stepper, budgets, dice)
        return grow_on_host(shape, stepper, budgets)

    return quicker


def grow_on_host(shape: Growing, stepper: Stepper, budgets: Seq[Budget]) -> DraftBatch:
    """The chosen tree of a shape; every level is read for all sequences."""
    depth = min(shape.depth, max(budget.depth for budget in budgets))
    pool = HostPool(stepper, shape.width)
    front = pool.grow(None, pool.root().top(shape.width))
    while front.level < depth and shape.goes_on(pool, torch.from_numpy(front.value), front.level + 1):
        front = pool.grow(front, pool.read(front.frontier()).top(shape.width))
    return pool.best(shape.nodes, shape.within(pool, budgets), shape.kind, shape.width)


def falling(value: Numbers) -> Numbers:
    """[B, n] places of the entries from the largest on; equal ones keep their order."""
    return np.argsort(-value, axis=1, kind="stable")


def inverse(order: Numbers) -> Numbers:
    """[B, n] where each place of a permutation went."""
    found = np.empty_like(order)
    found[np.arange(len(order))[:, None], order] = np.arange(order.shape[1])
    return found
