"""EAGLE-2 trees on the host, in numpy: a small operation takes a microsecond there where a tensor's takes ten.

What `on_host` wraps and `TreeBuilder` are the references. Nodes are numbered and chosen alike; of equal values the one
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

from ...types import Budget, DraftBatch, Kind
from ..rng.keyed import Rng
from ..shapes.step import Frontier, Stepper
from .builder import TreeBuilder

Numbers = NDArray[Any]
Found = tuple[Numbers, Numbers]  # log-probabilities and target ids of the most likely tokens, [B, w, k] each
Grow = Callable[[Any, Stepper, Seq[Budget], Rng], DraftBatch]


class Growing(Protocol):
    """What an EAGLE-2 tree and its subclasses decide by themselves."""

    @property
    def nodes(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def kind(self) -> Kind: ...

    def goes_on(self, builder: TreeBuilder, value: Tensor, level: int) -> bool: ...
    def within(self, builder: TreeBuilder, budgets: Seq[Budget]) -> Seq[Budget]: ...
    def prices(self) -> Prices | None: ...


@dataclass(frozen=True, slots=True)
class Prices:
    """What a tree's size is decided by, in the place of `goes_on` and `within`."""

    verify: Numbers  # [nodes + 1] float64 seconds of a pass over 0 .. nodes drafts
    first: float  # seconds of the first level ...
    further: float  # ... and of each after it
    children: Numbers  # [2] float64: how much of a node's value its two top children are hoped to have


@dataclass(frozen=True, slots=True)
class Pieces:
    """A calibration, piecewise linear in log-probabilities: [2 * (P + 1)] pieces of top tokens, then of others."""

    point: Numbers  # [P] float32, rising
    slope: Numbers
    offset: Numbers


@dataclass(frozen=True, slots=True)
class TreeOrder:
    """The tree that one sequence may have, for tops that grow a whole one."""

    width: int
    depth: int
    nodes: int  # of which `most` may be handed over
    most: int
    kind: Kind
    prices: Prices | None  # None = as many nodes as there may be
    pieces: Pieces | None = None  # None = a drafter's probabilities are right


Grown = tuple[DraftBatch, Tensor]  # and [1, N] log-probabilities as the drafter gave them


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


class Tops(Protocol):
    """The most likely tokens after nodes, in numpy. One that can grow the tree of one sequence has a `tree` besides."""

    def root(self, k: int) -> Found: ...
    def below(self, front: Front, k: int) -> Found: ...


class SteppedTops:
    """The top tokens of any stepper's steps; a stepper with `tops` of its own is asked directly."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def root(self, k: int) -> Found:
        values, ids = self._stepper.root().top(k)
        return values.numpy(), ids.numpy()

    def below(self, front: Front, k: int) -> Found:
        values, ids = self._stepper.expand(front.frontier()).top(k)
        return values.numpy(), ids.numpy()


def tops_of(stepper: Stepper) -> Tops:
    make: Callable[[], Tops] | None = getattr(stepper, "tops", None)
    return SteppedTops(stepper) if make is None else make()


def whole_tree(tops: Tops, order: TreeOrder) -> Grown | None:
    """The tree in one piece, where tops can do that."""
    make: Callable[[TreeOrder], Grown | None] | None = getattr(tops, "tree", None)
    return None if make is None else make(order)


def top_chain(tops: Tops, batch: int, length: int) -> Tensor:
    """[B, length] one token after another, each the most likely one there."""
    above, value = np.zeros((batch, 1), dtype=np.int64), np.zeros((batch, 1), dtype=np.float32)
    tokens = [tops.root(1)[1][:, :, 0]]
    for level in range(1, length):
        front = Front(above + level - 1, tokens[-1], above + level - 2, above, value, level)
        tokens.append(tops.below(front, 1)[1][:, :, 0])
    return torch.from_numpy(np.concatenate(tokens, axis=1))


class HostTreeBuilder(TreeBuilder):
    """A builder that grows level by level."""

    def __init__(self, stepper: Stepper, width: int, depth: int) -> None:
        super().__init__(stepper)
        self.width = width
        self._who = np.arange(self.batch)[:, None]
        self._begin: list[int] = []  # of each level
        rooms = width + (depth - 1) * width**2
        self._parent, self._token = np.empty((2, self.batch, rooms), dtype=np.int64)
        self._value = np.empty((self.batch, rooms), dtype=np.float32)

    def grow(self, front: Front | None, found: Found) -> Front:
        """Add the most likely tokens after a front (None = the root), [B, w, k] each; the best of them are the next."""
        more, token = found
        (batch, wide, k), begin = more.shape, self.size
        node = np.full((batch, wide), -1) if front is None else front.node
        if front is not None:
            more = front.value[:, :, None] + more
        token, value = token.reshape(batch, -1), more.reshape(batch, -1)
        self.levels, self.size = self.levels + 1, begin + wide * k
        self._begin.append(begin)
        new = slice(begin, self.size)
        self._parent[:, new], self._token[:, new], self._value[:, new] = node.repeat(k, 1), token, value
        best = falling(value)[:, : self.width]
        best.sort(axis=1)
        above = best // k
        return Front(
            best + begin, token[self._who, best], node[self._who, above], above, value[self._who, best], self.levels
        )

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parent, token, value = (torch.from_numpy(x[:, : self.size]) for x in (self._parent, self._token, self._value))
        return parent, token, value, torch.from_numpy(self._depth().repeat(self.batch, 0))

    def values(self) -> Tensor:
        return torch.from_numpy(self._value[:, : self.size])

    def within(self, budgets: Seq[Budget]) -> Tensor:
        return torch.from_numpy(self._within(budgets))

    def best(self, nodes: int, budgets: Seq[Budget], kind: Kind, branching: int) -> DraftBatch:
        parent, token, value = self._parent[:, : self.size], self._token, self._within(budgets)
        room = np.array([[max(0, min(nodes, budget.nodes))] for budget in budgets])
        here = (inverse(falling(value)) < room) & np.isfinite(value)
        order = np.argsort(~here, axis=1, kind="stable")
        place, chosen = inverse(order), order[:, :nodes]
        above = parent[self._who, chosen]
        above = np.where(above >= 0, place[self._who, above], -1)
        earlier = np.tril(above[:, :, None] == above[:, None, :], -1).sum(axis=2)
        token, depth = token[self._who, chosen], self._depth()[0, chosen]
        value = np.exp(np.where(here, value, -np.inf)[self._who, chosen])
        length = here.sum(axis=1)
        return DraftBatch(
            token=torch.from_numpy(token),
            parent=torch.from_numpy(above),
            depth=torch.from_numpy(depth),
            order=torch.from_numpy(earlier),
            length=torch.from_numpy(length),
            kind=kind,
            branching=branching,
            levels=self.levels,
            value=torch.from_numpy(value),
            source=torch.from_numpy(chosen),
            lengths_host=tuple(length.tolist()),
        )

    def _within(self, budgets: Seq[Budget]) -> Numbers:
        """[B, n] values, missing where a node is deeper than its sequence may draft."""
        value, allowed = self._value[:, : self.size], [budget.depth for budget in budgets]
        if min(allowed) >= self.levels:
            return value
        return np.where(self._depth() <= np.array(allowed)[:, None], value, np.float32(-np.inf))

    def _depth(self) -> Numbers:
        """[1, n]."""
        depth = np.zeros((1, self.size), dtype=np.int64)
        for begin in self._begin:
            depth[:, begin:] += 1
        return depth


def on_host(grow: Grow) -> Grow:
    """An EAGLE-2 tree's `grow`, done here where the drafter lives on the host; what it wraps is the reference."""

    @wraps(grow)
    def quicker(shape: Any, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        elsewhere = stepper.device.type != "cpu" or getattr(stepper, "captured", False)
        if elsewhere or max(budget.chain for budget in budgets) <= 0:
            return grow(shape, stepper, budgets, rng)
        return grow_on_host(shape, stepper, budgets)

    return quicker


def grow_on_host(shape: Growing, stepper: Stepper, budgets: Seq[Budget]) -> DraftBatch:
    """The chosen tree of a shape; every level is read for all sequences, or all at once for one."""
    depth = min(shape.depth, max(budget.depth for budget in budgets))
    tops, most = tops_of(stepper), min(shape.nodes, budgets[0].nodes)
    if len(budgets) == 1:
        order = TreeOrder(shape.width, depth, shape.nodes, most, shape.kind, shape.prices())
        if (grown := whole_tree(tops, order)) is not None:
            return grown[0]
    builder = HostTreeBuilder(stepper, shape.width, depth)
    front = builder.grow(None, tops.root(shape.width))
    while front.level < depth and shape.goes_on(builder, torch.from_numpy(front.value), front.level + 1):
        front = builder.grow(front, tops.below(front, shape.width))
    return builder.best(shape.nodes, shape.within(builder, budgets), shape.kind, shape.width)


def falling(value: Numbers) -> Numbers:
    """[B, n] places of the entries from the largest on; equal ones keep their order."""
    return np.argsort(-value, axis=1, kind="stable")


def inverse(order: Numbers) -> Numbers:
    """[B, n] where each place of a permutation went."""
    found = np.empty_like(order)
    found[np.arange(len(order))[:, None], order] = np.arange(order.shape[1])
    return found
