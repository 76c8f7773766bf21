"""Shapes: where a model drafter spends its next call. The protocol, and chains; other shapes have files of their own.

A shape sees draft distributions and its own random numbers (purpose DRAFT), never the target's rows or the verifier's
numbers. Whatever it draws reaches the verifier (DESIGN invariant 5): stop rules act before a draw, from quantities
known by then.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ...errors import UsageError
from ...types import Budget, Distribution, Distributions, DraftBatch, Kind, Topology
from ...types.drafts import chain_batch, empty_drafts
from ..distributions.tensors import DraftTable, MappedDistribution, PointMasses
from ..host_look import may_look
from ..rng.batched import batched_rng
from ..rng.keyed import Purpose, Rng
from .static_tree import FixedTree, StaticTree
from .step import Frontier, Step, Stepper, Vocabulary, chain_distributions

__all__ = ["Chain", "Frontier", "Shape", "StaticTree", "Step", "Stepper", "Stop", "Vocabulary", "deepest"]


class Stop(Protocol):
    """Decides, token by token, whether a chain goes on.

    It may look at the distribution that a token is drawn from and at earlier draws, never at the draw itself: what has
    been drawn is verified (invariant 5).
    """

    def begin(self, ids: Seq[int], device: torch.device) -> Tensor:
        """The state of fresh chains of these sequences, float32 [B] or [B, whatever the rule carries along]."""

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        """State, and [B] bool: draft beyond the token that `step` yields (depth 0 = after the pending token)?"""


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

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        """Draft within budgets[b] for sequence b."""


def most_siblings(shape: Shape) -> int:
    """Most children that a shape gives a node."""
    if isinstance(shape, FixedTree):
        return max(map(shape.layout.parent.count, shape.layout.parent))
    return 1 if shape.topology is Topology.CHAIN else shape.nodes


def deepest(shape: Shape) -> int | None:
    """The longest path that a shape drafts; None where it does not say."""
    if isinstance(shape, Chain):
        return shape.nodes
    if isinstance(shape, FixedTree):
        return len(shape.layout.levels(shape.nodes))
    return getattr(shape, "depth", None)


@dataclass(frozen=True, slots=True)
class Chain:
    """One drawn token after another; at temperature 0 a draw is the argmax."""

    nodes: int = 5
    stop: Stop | None = None  # None = always the whole length
    kind: Kind = Kind.SAMPLED_WITHOUT_REPLACEMENT
    topology: Topology = Topology.CHAIN
    states: bool = False  # hand over the draft model's state at every node, for which it reads the last one too
    values: bool = False  # hand over the product of top probabilities at temperature 1, which looks at no token

    @property
    def sure(self) -> bool:
        """Whether it is the top token whatever the temperature: then nothing is drawn."""
        return self.kind is Kind.CHOSEN

    @property
    def reads(self) -> int:
        return self.nodes

    @property
    def numbered(self) -> int:
        return self.nodes

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        length = min(self.nodes, max(budget.chain for budget in budgets))
        if length <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        if (made := self._tops(stepper, length, budgets)) is not None:
            return made
        tokens: list[Tensor] = []
        drawn_from: list[Distribution] = []
        steps = [stepper.root()]
        drafting = _Drafting(self.stop, stepper)
        if not steps[0].block.all_greedy and not may_look(steps[0].rows):
            rng = batched_rng(rng, length, Purpose.DRAFT)
        numbers = torch.arange(-1, length + 1, device=stepper.device).expand(stepper.batch, -1)
        for i in range(length):
            above, node, below = (numbers[:, k : k + 1] for k in range(i, i + 3))  # i - 1, i, i + 1 for every sequence
            drawn_from.append(steps[-1].distribution(0))
            tokens.append(rng.draw(drawn_from[-1], Purpose.DRAFT, node[:, 0]))
            if i + 1 == length or not drafting.any_beyond(steps[-1], i):
                break
            steps.append(stepper.expand(Frontier(node, tokens[-1][:, None], above, below)))
        lengths = tuple(min(n, b.chain) for n, b in zip(drafting.lengths(len(tokens)), budgets, strict=True))
        drawn = torch.stack(tokens, dim=1)
        distributions = None if self.sure else self._distributions(stepper, steps, drawn, drawn_from)
        drafts = chain_batch(drawn, lengths, self.kind, distributions)
        if self.values:
            value = torch.stack([step.top(1)[0][:, 0, 0] for step in steps], dim=1).cumsum(dim=1)
            drafts = replace(drafts, value=value.exp())
        return replace(drafts, states=_states(stepper, steps, tokens[-1])) if self.states else drafts

    def _tops(self, stepper: Stepper, length: int, budgets: Seq[Budget]) -> DraftBatch | None:
        """Greedy chains of a stepper that finds them without steps, for which the loop below is the reference."""
        quick: Callable[[int], tuple[Tensor, int] | None] | None = getattr(stepper, "top_chain", None)
        if quick is None or self.stop is not None or self.states or self.values or (found := quick(length)) is None:
            return None
        drawn, words = found
        lengths = tuple(min(length, budget.chain) for budget in budgets)
        return chain_batch(drawn, lengths, self.kind, None if self.sure else PointMasses(drawn, words))

    def _distributions(
        self, stepper: Stepper, steps: Seq[Step], drawn: Tensor, drawn_from: Seq[Distribution]
    ) -> Distributions:
        """Written out where a captured verifier will read them; else worked out again where a rule looks."""
        captured = getattr(stepper, "captured", False) and not steps[0].block.all_greedy
        return _written_out(steps, drawn_from) if captured else chain_distributions(steps, drawn)


def _written_out(steps: Seq[Step], drawn_from: Seq[Distribution]) -> DraftTable:
    """All of them, computed where they were drawn from."""
    words = steps[0].vocabulary
    inner = [d.inner if isinstance(d, MappedDistribution) else d for d in drawn_from]
    probs = torch.stack([d.dense() for d in inner], dim=1)
    return DraftTable(probs) if words is None else DraftTable(probs, words.ids, words.index)


def _states(stepper: Stepper, steps: Seq[Step], last: Tensor) -> Tensor:
    """[B, N, d] the draft model's state with each token of a chain as input; only the last one is still to be read."""
    node = torch.full_like(last, len(steps) - 1)[:, None]
    steps = [*steps[1:], stepper.expand(Frontier(node, last[:, None], node - 1, node + 1))]
    found = [step.hidden[step.rows[:, 0]] for step in steps if step.hidden is not None]
    if len(found) < len(steps):
        raise UsageError("this drafter has no states of its own for a judge that reads them; train one without 'draft'")
    return torch.stack(found, dim=1)


class _Drafting:
    """Which chains of a batch still grow. Chains that have stopped are carried along and cut afterwards."""

    def __init__(self, stop: Stop | None, stepper: Stepper) -> None:
        self.stop, self.batch = stop, stepper.batch
        if stop is not None:
            self.state = stop.begin(stepper.ids, stepper.device)
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
