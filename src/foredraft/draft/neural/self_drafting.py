"""Targets that draft for themselves, in their own slots: without some halves of their layers, or through placeholders.

Draft & Verify reads the K/V of the verified text as the whole model has written it; its own rows have no keys and
values where attention is left out. SDSAT runs one pass over the pending token and k placeholders: the first row is the
target's own distribution, and what placeholders say does not depend on the tokens drafted before, so every level has
one distribution. All these rows are scratch and dropped before verification.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import Rng
from ...core.shapes.base import Frontier, Shape, Step
from ...errors import UsageError
from ...models.heads import SdsatHead
from ...models.layers.skip_set import SkipSet
from ...runtime import FINAL, Executor, Output, Rows, TorchExecutor
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter
from .draft_model import ModelStepper, draft_block


class SelfDrafter(Drafter):
    """A drafter that is the target itself, in whatever way; all that it knows of a text is the target's K/V."""

    def __init__(self, target: Executor, shape: Shape, name: str) -> None:
        self.name, self.shape = name, shape
        self.kinds: frozenset[Kind] = frozenset({shape.kind})
        self.topology: Topology = shape.topology
        self.nodes = shape.nodes
        self._device, self._vocab = target.device, target.vocab_size

    def options(self, sequences: Seq[Sequence]) -> ParamBlock:
        return draft_block(sequences, self.shape, self._vocab, self._device)


class LayerSkipDrafter(SelfDrafter):
    """Some halves of the target's layers are left out."""

    def __init__(self, target: Executor, shape: Shape, skip: SkipSet, name: str = "draft-and-verify") -> None:
        if shape.reads >= target.max_scratch:
            raise UsageError(
                f"a draft of {shape.reads} nodes exceeds the {target.max_scratch - 1} that fit; shorten it"
            )
        super().__init__(target, shape, name)
        self.target, self.skip = target, skip

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        slots = [s.slot for s in sequences]
        stepper = SkippingStepper(self.target, slots, sequences, self.options(sequences), self.shape)
        stepper.skip = self.skip
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.target.device))
        self.target.rollback(stepper.slots, stepper.lengths)
        return drafts


class SkippingStepper(ModelStepper):
    """One round in the target's own slots. The pending token is scratch row 0, so node i lies in row i + 1."""

    skip: SkipSet
    tracks = False

    @property
    def lengths(self) -> list[int]:
        """Verified tokens but the pending one, of each sequence."""
        return [len(tokens) - 1 for tokens in self.tokens]

    def root(self) -> Step:
        self.executor.rollback(self.slots, self.lengths)  # forgets what a round that failed half-way has left
        pending = torch.tensor([tokens[-1] for tokens in self.tokens], device=self.device)
        out = self._pass(Rows(tuple(self.slots), (1,) * self.batch, pending, torch.zeros_like(pending)))
        return self._step(out, out.index)

    def expand(self, frontier: Frontier) -> Step:
        rows = self._place(frontier)
        above = None if rows.parent is None else rows.parent + 1
        out = self._pass(replace(rows, depth=rows.depth + 1, parent=above))
        return self._step(out, out.index)

    def _pass(self, rows: Rows) -> Output:
        executor = self.executor
        stream = executor.embed(rows.token)
        every = range(executor.num_layers)
        hidden, _ = executor.forward_layers(executor.place(rows), stream, every, skip=self.skip)
        features, logits = executor.head(hidden)
        return Output(logits, {FINAL: features}, rows.index())


class SdsatDrafter(SelfDrafter):
    """The rows of placeholders are scratch in the target's slots, and are dropped."""

    def __init__(self, head: SdsatHead, target: TorchExecutor, shape: Shape, name: str = "sdsat") -> None:
        super().__init__(target, shape, name)
        self.head, self.target = head, target

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        stepper = PlaceholderStepper(self, sequences, self.options(sequences))
        return self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.target.device))


class PlaceholderStepper:
    """One round: `root` runs the pass, and every further level is one of its rows."""

    def __init__(self, drafter: SdsatDrafter, sequences: Seq[Sequence], block: ParamBlock) -> None:
        self.head, self.target, self.block = drafter.head, drafter.target, block
        self.tokens, self.slots = [s.tokens for s in sequences], [s.slot for s in sequences]
        self.batch, self.ids, self.device = len(sequences), tuple(s.id for s in sequences), drafter.target.device
        self._level = 0

    def root(self) -> Step:
        lengths = [len(tokens) - 1 for tokens in self.tokens]
        self.target.rollback(self.slots, lengths)  # forgets what a round that failed half-way has left
        rows = Rows.chains(self.slots, [[tokens[-1]] + [0] * self.head.size for tokens in self.tokens], self.device)
        placement = self.target.place_open(rows)
        placed = rows.depth > 0
        stream = torch.where(placed[:, None], self._placeholders(), self.target.embed(rows.token))
        features = self.head.run(stream, placement.position, placement.attend, placed)
        self._logits = self.target.decoder.logits(features)
        self.target.rollback(self.slots, lengths)
        return self._step(1)

    def _placeholders(self) -> Tensor:
        """[T, d] placeholder m in row m of every sequence; row 0 is anything."""
        table = torch.cat((self.head.placeholders[:1], self.head.placeholders))
        return table.to(self.target.dtype).repeat(self.batch, 1)

    def expand(self, frontier: Frontier) -> Step:
        self._level += 1
        return self._step(frontier.token.shape[1])

    def _step(self, width: int) -> Step:
        first = torch.arange(self.batch, device=self.device) * self.head.length + self._level
        return Step(self._logits, first[:, None].expand(-1, width), self.block)
