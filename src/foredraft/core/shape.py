"""Shapes: where a model drafter spends its next call. Chains and static trees; others plug in beside them.

A shape sees draft laws and its own dice (purpose DRAFT), never the target's rows or the verifier's rolls. Whatever it
draws reaches the verifier (DESIGN law 5): stop rules act before a draw, from quantities known by then.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..types import Budget, DraftBatch, Kind, Law, Laws, Topology
from ..types.drafts import chain_batch, empty_drafts
from .dice import Dice, Purpose
from .laws import DenseLaw, LazyLaws, MappedLaw
from .sampling import LogitLaws, ParamBlock, law_of
from .surgery import cut, keep

IMPOSSIBLE = -1e4  # log-probability that stands for zero


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A drafter's own vocabulary in target ids."""

    ids: Tensor  # [Vd] target id of each draft id
    index: Tensor  # [V] draft id of each target id, -1 where there is none


@dataclass(frozen=True, slots=True)
class Step:
    """What a drafter knows after one call: a law and a state behind each of w nodes of every sequence."""

    logits: Tensor  # [M, Vd] packed
    rows: Tensor  # [B, w] packed row of each node
    block: ParamBlock  # the draft's own sampling options
    hidden: Tensor | None = None  # [M, d] packed, for learned stop rules
    vocabulary: Vocabulary | None = None  # None = the target's

    def law(self, column: int) -> Law:
        """The draft law behind the node in that column, in target ids."""
        law = law_of(self.logits[self.rows[:, column]].to(torch.float32), self.block)
        return law if self.vocabulary is None else MappedLaw(law, self.vocabulary.ids, self.vocabulary.index)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest tokens behind every node: log-probabilities at temperature 1 and target ids, [B, w, k].

        A smaller vocabulary gives fewer; an impossible token gets a very small value, so that values stay finite.
        """
        scores = torch.log_softmax(self.logits.to(torch.float32), dim=1)
        values, ids = scores.topk(min(k, scores.shape[1]), dim=1)
        values = values.clamp(min=IMPOSSIBLE)
        if self.vocabulary is not None:
            ids = self.vocabulary.ids[ids]
        return values[self.rows], ids[self.rows]


def draft_laws(steps: Seq[Step], row_of: Tensor) -> Laws:
    """The laws of several calls by tree row. row_of [B, R]: column of each row, counted through all calls."""
    logits = torch.cat([step.logits for step in steps])
    starts = [0]
    for step in steps:
        starts.append(starts[-1] + step.logits.shape[0])
    packed = torch.cat([step.rows + start for step, start in zip(steps, starts, strict=False)], dim=1)
    laws = LogitLaws(logits, packed.gather(1, row_of), steps[0].block)
    words = steps[0].vocabulary
    return laws if words is None else LazyLaws(lambda row: MappedLaw(laws.at(row), words.ids, words.index))


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


class Stop(Protocol):
    """Decides, token by token, whether a chain goes on.

    It may look at the law that a token is drawn from and at what was drawn before, never at the draw itself: what has
    been drawn is verified (law 5).
    """

    def begin(self, batch: int, device: torch.device) -> Tensor:
        """The state of fresh chains, [B] float32."""

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        """State, and [B] bool: draft beyond the token that `step` yields (depth 0 = behind the pending token)?"""


class Shape(Protocol):
    """Grows one batch of drafts."""

    @property
    def kind(self) -> Kind: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def nodes(self) -> int:
        """Most nodes that it hands to the verifier, per sequence."""

    @property
    def reads(self) -> int:
        """Most nodes that the draft model reads while growing."""

    @property
    def numbered(self) -> int:
        """Nodes that get a number while growing, those included that it drops again."""

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        """Draft within budgets[b] for sequence b."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One drawn token after another; at temperature 0 a draw is the argmax."""

    nodes: int = 5
    stop: Stop | None = None  # None = always the whole length
    kind: Kind = Kind.SAMPLED_WITHOUT_REPLACEMENT
    topology: Topology = Topology.CHAIN

    @property
    def reads(self) -> int:
        return self.nodes

    @property
    def numbered(self) -> int:
        return self.nodes

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        length = min(self.nodes, max(budget.chain for budget in budgets))
        if length <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        tokens: list[Tensor] = []
        steps = [stepper.root()]
        drafting = _Drafting(self.stop, stepper)
        for i in range(length):
            node = torch.full((stepper.batch,), i, dtype=torch.int64, device=stepper.device)
            tokens.append(dice.draw(steps[-1].law(0), Purpose.DRAFT, node))
            if i + 1 == length or not drafting.any_beyond(steps[-1], i):
                break
            here = node[:, None]
            steps.append(stepper.expand(Frontier(here, tokens[-1][:, None], here - 1, here + 1)))
        lengths = tuple(min(n, b.chain) for n, b in zip(drafting.lengths(len(tokens)), budgets, strict=True))
        # Row i lies behind node i - 1; nobody asks for the row behind the last one.
        row_of = torch.arange(len(tokens) + 1, device=stepper.device).clamp(max=len(tokens) - 1)
        laws = draft_laws(steps, row_of.expand(stepper.batch, -1))
        return chain_batch(torch.stack(tokens, dim=1), lengths, self.kind, laws)


class _Drafting:
    """Which chains of a batch still grow. Chains that have stopped are carried along and cut afterwards."""

    def __init__(self, stop: Stop | None, stepper: Stepper) -> None:
        self.stop, self.batch = stop, stepper.batch
        if stop is not None:
            self.state = stop.begin(stepper.batch, stepper.device)
            self.growing = torch.ones(stepper.batch, dtype=torch.bool, device=stepper.device)
            self.drawn = torch.ones(stepper.batch, dtype=torch.int64, device=stepper.device)

    def any_beyond(self, step: Step, depth: int) -> bool:
        if self.stop is None:
            return True
        self.state, beyond = self.stop.go_on(self.state, step, depth)
        self.growing = self.growing & beyond
        self.drawn = self.drawn + self.growing.to(torch.int64)
        return bool(self.growing.any())

    def lengths(self, drawn: int) -> list[int]:
        return [drawn] * self.batch if self.stop is None else [min(drawn, n) for n in self.drawn.tolist()]


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

    @property
    def reads(self) -> int:
        return self.nodes

    @property
    def numbered(self) -> int:
        return self.nodes

    def grow(self, stepper: Stepper, budgets: Seq[Budget], dice: Dice) -> DraftBatch:
        counts = self.counts[: max(budget.depth for budget in budgets)]
        if not counts or max(budget.nodes for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        grown = _Growing(stepper.batch, stepper.device)
        steps = [stepper.root()]
        parents = [-1]
        for depth, count in enumerate(counts, start=1):
            begin = grown.size
            for column, parent in enumerate(parents):
                tokens, real = self._children(steps[-1].law(column), count, grown.size, dice)
                grown.add(parent, depth, tokens, real)
            parents = list(range(begin, grown.size))
            if depth < len(counts):
                steps.append(stepper.expand(grown.level(begin)))
        drafts = grown.finish(self.kind, max(counts), len(counts))
        if self.drawn:  # columns of the calls are the root and the expanded nodes, in the order of the nodes
            read = sum(step.rows.shape[1] for step in steps)
            row_of = torch.arange(grown.size + 1, device=stepper.device).clamp(max=read - 1)
            drafts = replace(drafts, laws=draft_laws(steps, row_of.expand(stepper.batch, -1)))
        return grown.trim(drafts, budgets)

    def _children(self, law: Law, count: int, first: int, dice: Dice) -> tuple[Tensor, Tensor]:
        """[B, count] distinct tokens, in draw order or by falling probability, and which of them exist."""
        probs = law.dense()
        if not self.drawn:
            tokens = probs.topk(count, dim=1).indices
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        drawn, real = [], []
        for k in range(count):
            left = probs.sum(dim=1) > 0  # a law may have fewer tokens than children were asked for
            node = torch.full((probs.shape[0],), first + k, dtype=torch.int64, device=probs.device)
            token = torch.zeros_like(node)
            if left.device.type != "cpu" or bool(left.any()):
                token = torch.where(left, dice.draw(DenseLaw(probs), Purpose.DRAFT, node), 0)
            probs = probs.scatter(1, token[:, None], 0.0)
            drawn.append(token)
            real.append(left)
        return torch.stack(drawn, dim=1), torch.stack(real, dim=1)


class _Growing:
    """A tree under construction whose structure is the same for every sequence."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.batch, self.device, self.size = batch, device, 0
        self.token: list[Tensor] = []
        self.real: list[Tensor] = []  # False where a law had no token left
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.order: list[int] = []

    def add(self, parent: int, depth: int, tokens: Tensor, real: Tensor) -> None:
        count = tokens.shape[1]
        self.token.append(tokens)
        self.real.append(real)
        self.parent += [parent] * count
        self.depth += [depth] * count
        self.order += range(count)
        self.size += count

    def level(self, begin: int) -> Frontier:
        """The nodes from `begin` on."""
        node = self._spread(list(range(begin, self.size)))
        token = torch.cat(self.token, dim=1)[:, begin:]
        return Frontier(node, token, self._spread(self.parent[begin:]), self._spread(self.depth[begin:]))

    def finish(self, kind: Kind, branching: int, levels: int) -> DraftBatch:
        lengths = (self.size,) * self.batch
        return DraftBatch(
            token=torch.cat(self.token, dim=1),
            parent=self._spread(self.parent),
            depth=self._spread(self.depth),
            order=self._spread(self.order),
            length=torch.tensor(lengths, device=self.device),
            kind=kind,
            branching=branching,
            levels=levels,
            lengths_host=lengths,
        )

    def trim(self, drafts: DraftBatch, budgets: Seq[Budget]) -> DraftBatch:
        """Within the budgets, and without nodes that do not exist.

        Nodes lie level by level, so a cut by index drops the last draws whatever their tokens are (law 5).
        """
        drafts = cut(drafts, [min(b.nodes, sum(d <= b.depth for d in self.depth)) for b in budgets])
        real = torch.cat(self.real, dim=1)
        if bool(real.all()):
            return drafts
        for node, parent in enumerate(self.parent):  # below a missing node everything is missing
            if parent >= 0:
                real[:, node] &= real[:, parent]
        return keep(drafts, real)

    def _spread(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device).expand(self.batch, len(values))
