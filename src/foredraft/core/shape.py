"""Shapes: where a model drafter spends its next call. Chains and static trees; others plug in beside them.

A shape sees draft laws and its own dice (purpose DRAFT), never the target's rows or the verifier's rolls. Whatever it
draws reaches the verifier (DESIGN law 5): stop rules act before a draw, from quantities known by then.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..types import Budget, DraftBatch, Kind, Law, Topology
from ..types.drafts import chain_batch, empty_drafts
from .dice import Dice, Purpose
from .laws import DenseLaw, LazyLaws


class Step(Protocol):
    """What a drafter knows after one call: a law and a state behind each of w nodes."""

    @property
    def hidden(self) -> Tensor | None:
        """[B, w, d] states behind the nodes, for learned stop rules."""

    def law(self, column: int) -> Law:
        """The draft law behind the node in that column, for every sequence."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Nodes that the draft model shall read next, w per sequence. All [B, w] int64."""

    node: Tensor  # indices in the tree under construction
    token: Tensor
    parent: Tensor  # indices, -1 = root
    depth: Tensor  # 1 = child of the root


class Stepper(Protocol):
    """A model drafter during one round, bound to its sequences."""

    batch: int
    device: torch.device

    def root(self) -> Step:
        """The law behind the pending token (one column)."""

    def expand(self, frontier: Frontier) -> Step:
        """Read nodes whose parents have been read (or are the root); laws behind each of them."""


class Shape(Protocol):
    """Grows one batch of drafts."""

    @property
    def kind(self) -> Kind: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def nodes(self) -> int:
        """Most nodes per sequence."""

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        """Draft within budgets[b] for sequence b."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One drawn token after another; at temperature 0 a draw is the argmax."""

    nodes: int = 5
    kind: Kind = Kind.SAMPLED_WITHOUT_REPLACEMENT
    topology: Topology = Topology.CHAIN

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        length = min(self.nodes, max(budget.chain for budget in budgets))
        if length <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        tokens: list[Tensor] = []
        laws: list[Law] = []
        step = stepper.root()
        for i in range(length):
            node = torch.full((stepper.batch,), i, dtype=torch.int64, device=stepper.device)
            laws.append(step.law(0))
            tokens.append(dice.draw(laws[-1], Purpose.DRAFT, node))
            if i + 1 < length:
                here = node[:, None]
                step = stepper.expand(Frontier(here, tokens[-1][:, None], here - 1, here + 1))
        lengths = tuple(min(length, budget.chain) for budget in budgets)
        return chain_batch(torch.stack(tokens, dim=1), lengths, self.kind, rows_of(laws))


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A tree of fixed branching, e.g. (4, 2, 2): every node of level d - 1 has counts[d - 1] children.

    `drawn` children are sampled without replacement, others are the likeliest tokens.
    """

    counts: tuple[int, ...] = (4, 2, 2)
    drawn: bool = False

    @property
    def kind(self) -> Kind:
        return Kind.SAMPLED_WITHOUT_REPLACEMENT if self.drawn else Kind.CHOSEN

    @property
    def topology(self) -> Topology:
        return Topology.TREE

    @property
    def nodes(self) -> int:
        total, width = 0, 1
        for count in self.counts:
            width *= count
            total += width
        return total

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        counts = self.counts[: max(budget.depth for budget in budgets)]
        if not counts or max(budget.nodes for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        grown = _Growing(stepper.batch, stepper.device)
        step, parents = stepper.root(), [-1]
        for depth, count in enumerate(counts, start=1):
            begin = grown.size
            for column, parent in enumerate(parents):
                law = step.law(column)
                grown.add(parent, depth, self._children(law, count, grown.size, dice), law if self.drawn else None)
            parents = list(range(begin, grown.size))
            if depth < len(counts):
                step = stepper.expand(grown.level(begin))
        return grown.finish(self.kind, max(counts), len(counts), budgets)

    def _children(self, law: Law, count: int, first: int, dice: Dice) -> Tensor:
        """[B, count] distinct tokens, in draw order or by falling probability."""
        probs = law.dense()
        if not self.drawn:
            return probs.topk(count, dim=1).indices
        drawn = []
        for k in range(count):
            node = torch.full((probs.shape[0],), first + k, dtype=torch.int64, device=probs.device)
            token = dice.draw(DenseLaw(probs), Purpose.DRAFT, node)
            probs = probs.scatter(1, token[:, None], 0.0)
            drawn.append(token)
        return torch.stack(drawn, dim=1)


class _Growing:
    """A tree under construction whose structure is the same for every sequence."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.batch, self.device, self.size = batch, device, 0
        self.token: list[Tensor] = []
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.order: list[int] = []
        self.laws: dict[int, Law] = {}

    def add(self, parent: int, depth: int, tokens: Tensor, law: Law | None) -> None:
        count = tokens.shape[1]
        self.token.append(tokens)
        self.parent += [parent] * count
        self.depth += [depth] * count
        self.order += range(count)
        self.size += count
        if law is not None:
            self.laws[parent + 1] = law

    def level(self, begin: int) -> Frontier:
        """The nodes from `begin` on."""
        node = self._spread(list(range(begin, self.size)))
        token = torch.cat(self.token, dim=1)[:, begin:]
        return Frontier(node, token, self._spread(self.parent[begin:]), self._spread(self.depth[begin:]))

    def finish(self, kind: Kind, branching: int, levels: int, budgets: Seq[Budget]) -> DraftBatch:
        lengths = (self.size,) * self.batch
        drafts = DraftBatch(
            token=torch.cat(self.token, dim=1),
            parent=self._spread(self.parent),
            depth=self._spread(self.depth),
            order=self._spread(self.order),
            length=torch.tensor(lengths, device=self.device),
            kind=kind,
            branching=branching,
            levels=levels,
            laws=rows_of([self.laws[r] for r in sorted(self.laws)], sorted(self.laws)) if self.laws else None,
            lengths_host=lengths,
        )
        # Nodes lie level by level, so a cut by index drops the last draws whatever their tokens are (law 5).
        return drafts.cut([min(b.nodes, sum(d <= b.depth for d in self.depth)) for b in budgets])

    def _spread(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device).expand(self.batch, len(values))


def rows_of(laws: list[Law], rows: list[int] | None = None) -> LazyLaws:
    """Draft laws by tree row. laws[i] belongs to row rows[i] (default: row i), for every sequence alike."""
    place = {row: i for i, row in enumerate(rows)} if rows is not None else None

    def work_out(row: Tensor) -> Law:
        wanted = row.tolist()
        index = [min(r, len(laws) - 1) if place is None else place.get(r, 0) for r in wanted]
        if len(set(index)) == 1:
            return laws[index[0]]
        return PickedLaw(laws, index)

    return LazyLaws(work_out)


@dataclass(frozen=True, slots=True)
class PickedLaw:
    """Sequence b follows laws[index[b]]: what a batch sees whose sequences stand at different depths."""

    laws: list[Law]
    index: list[int]

    def _pick(self, parts: dict[int, Tensor]) -> Tensor:
        return torch.stack([parts[i][b] for b, i in enumerate(self.index)])

    def prob(self, token: Tensor) -> Tensor:
        return self._pick({i: self.laws[i].prob(token) for i in set(self.index)})

    def dense(self) -> Tensor:
        return self._pick({i: self.laws[i].dense() for i in set(self.index)})

    def draw(self, uniform: Tensor) -> Tensor:
        return self._pick({i: self.laws[i].draw(uniform) for i in set(self.index)})

    def race(self, key: Tensor) -> Tensor:
        return self._pick({i: self.laws[i].race(key) for i in set(self.index)})
