"""A whole round of a draft model or a head as one CUDA graph: reading what is new, every level, every choice.

For shapes whose course does not depend on what is drafted. Trees are captured where every sequence may draft all of
them, chains, whether of top tokens or drawn ones, at a few lengths and cut to each sequence's own. Random numbers are
hashes of keys that come with the inputs, so the drafts are those of the steps one by one; a round then costs the host
an upload and a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...core.distributions.param_table import Form, block_of, form_of, key_lines
from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import KeyedRng
from ...core.shapes.base import Chain, Shape, deepest
from ...core.shapes.eagle2_tree import Eagle2Tree
from ...core.shapes.step import Stepper
from ...core.trees.editing import cut, part
from ...runtime import Executor
from ...runtime.cuda.captured_passes import CapturedPasses
from ...runtime.cuda.executor import BATCHES, GraphExecutor, fitting
from ...runtime.row_layout import NOWHERE, pinned
from ...types import Budget, DraftBatch, SamplingParams, Sequence

READS = (2, 8, 16)  # new tokens of a sequence that a captured round reads
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 32, 40, 48, 64)  # of captured chains that are shorter than usual
MOST = 64  # sequences of a captured round
AFTER = 1  # rounds before one is captured

OWNERS = count()  # graphs belong to drafters by number: an address may be used again

# Makes the stepper of a round: (executor, tokens [B, W], counts [B], features [B, W, d] or None, draft options).
MakeStepper = Callable[[CapturedPasses, Tensor, Tensor, Tensor | None, ParamBlock], "RowStepper"]


@dataclass(frozen=True, slots=True)
class Draws:
    """What drawn drafts need: the form of the draft options, and seeds, rounds, positions and options as lines."""

    form: Form
    lines: list[list[int]]  # [3 + LINES, B]

    @classmethod
    def of(cls, shape: Shape, sequences: Seq[Sequence], params: Seq[SamplingParams], vocab: int) -> Draws | None:
        """None where nothing is drawn."""
        form = form_of(params, vocab)
        if form.all_greedy or not isinstance(shape, Chain):
            return None
        return cls(form, key_lines(sequences, params, vocab))


class RowStepper(Stepper, Protocol):
    """A stepper that knows the scratch row of each node."""

    tracks: bool  # whether those rows will be needed

    @property
    def row_of(self) -> Tensor | None:
        """[B, numbered], -1 = not read."""


@dataclass(frozen=True, slots=True)
class CapturedDrafts:
    """What a captured round hands back."""

    drafts: DraftBatch
    row_of: Tensor | None  # [B, numbered] scratch row of each node, -1 = not read; None = not needed
    rows: int  # scratch rows of every sequence


def can_capture(executor: Executor, shape: Shape, sequences: Seq[Sequence], words: int) -> bool:
    """Whether a round of these sequences may be captured; words: those that may be drafted."""
    if executor.capturing is None or len(sequences) > MOST:
        return False
    if type(shape) is Chain:
        return shape.stop is None and not shape.values and any(s.budget.chain > 0 for s in sequences)
    # A tree has all its nodes where the vocabulary has enough tokens.
    sure = type(shape) is Eagle2Tree and shape.numbered >= shape.nodes and words >= shape.width
    depth = deepest(shape) or 0
    return sure and all(s.budget.nodes >= shape.nodes and s.budget.depth >= depth for s in sequences)


def shape_for(shape: Shape, sequences: Seq[Sequence]) -> Shape:
    """What is captured for these sequences: a chain may be longer than any of them wants, but not by much."""
    if not isinstance(shape, Chain):
        return shape
    nodes = min(shape.nodes, fitting(max(s.budget.chain for s in sequences), LENGTHS))
    return shape if nodes == shape.nodes else replace(shape, nodes=nodes)


def cut_to_budgets(drafts: DraftBatch, sequences: Seq[Sequence]) -> DraftBatch:
    """Chains of top tokens, each as long as its sequence wants."""
    return cut(drafts, [s.budget.chain for s in sequences]) if drafts.branching <= 1 else drafts


@dataclass(frozen=True, slots=True)
class Asked:
    """One round: what is new of which texts, and who drafts after it. The slots hold the texts before `unread`."""

    shape: Shape
    slots: Seq[int]
    unread: Seq[Seq[int]]
    make: MakeStepper
    owner: Hashable
    features: Seq[Tensor] | Tensor | None = None  # that go with unread tokens: [n, d] of each sequence, or [B, most, d]
    draws: Draws | None = None  # for drafts that are drawn
    reads: Seq[int] = READS  # unread tokens that rounds are captured for; one size, where they cost nothing

    def table(self, executor: GraphExecutor, batch: int, width: int) -> Tensor:
        """[.., batch]: slots, lengths, counts of unread tokens, the draws' lines, the tokens."""
        fill = [0] * (batch - len(self.slots))
        counts, lengths = [len(run) for run in self.unread], [executor.length(slot) for slot in self.slots]
        tokens = [[run[min(i, len(run) - 1)] for run in self.unread] + fill for i in range(width)]
        lines = [] if self.draws is None else [line + fill for line in self.draws.lines]
        return pinned([filled(self.slots, batch), lengths + fill, counts + fill, *lines, *tokens], executor.device)


def capture_round(executor: GraphExecutor, asked: Asked) -> CapturedDrafts | None:
    """A round that reads what is new for good, valid until the next one; None where too much is unread."""
    counts = [len(run) for run in asked.unread]
    ends = [executor.length(slot) + count for slot, count in zip(asked.slots, counts, strict=True)]
    if max(counts) > READS[-1] or max(ends) > executor.max_length:
        return None
    executor.kv_cache.take(asked.slots, [count + asked.shape.reads for count in counts])
    return settled(executor, run_round(executor, asked), asked.slots, asked.unread)


def run_round(executor: GraphExecutor, asked: Asked) -> CapturedDrafts:
    """The round alone, with what fills the batch up: its rows have their places already, and no length changes."""
    shape, draws, make = asked.shape, asked.draws, asked.make
    batch = fitting(len(asked.slots), BATCHES)  # batches that shrink and grow share graphs
    width = fitting(max(map(len, asked.unread)), asked.reads)

    def body(table: Tensor, features: Tensor | None = None) -> CapturedDrafts:
        slot, length, fresh = table[:3].unbind(0)
        inside = CapturedPasses(executor, slot, length)
        keys, given = table[3 : len(table) - width], table[len(table) - width :].T
        if features is not None and features.shape[:2] != (batch, width):  # an eager call: the inputs are not padded
            features = F.pad(features, (0, 0, 0, width - features.shape[1], 0, batch - len(features)))
        block = sure_block(batch, executor.device) if draws is None else block_of(draws.form, keys[3:])
        rng = _no_rng(fresh) if draws is None else KeyedRng(keys[0], keys[1], keys[2])
        stepper = make(inside, given.contiguous(), fresh, features, block)
        drafts = shape.grow(stepper, [Budget(shape.nodes, deepest(shape) or shape.nodes)] * batch, rng)
        rows = stepper.row_of if stepper.tracks else None
        return CapturedDrafts(replace(drafts, lengths_host=(shape.nodes,) * batch), rows, inside.first)

    inputs = [asked.table(executor, batch, width)]
    rooms: list[Seq[int]] = [inputs[0].shape]
    if asked.features is not None:
        inputs.append(_padded(asked.features))
        rooms.append((batch, width, inputs[1].shape[2]))
    return executor.graphs.run(key_of(asked.owner, shape, batch, width, draws), body, inputs, rooms, AFTER)


def key_of(owner: Hashable, shape: Shape, batch: int, width: int, draws: Draws | None) -> Hashable:
    return "draft", owner, shape, batch, width, draws and draws.form


def settled(executor: GraphExecutor, made: CapturedDrafts, slots: Seq[int], unread: Seq[Seq[int]]) -> CapturedDrafts:
    """Enter what a round has read into the K/V cache's lengths; its answer without what filled the batch up."""
    lengths = [executor.length(slot) + len(run) for slot, run in zip(slots, unread, strict=True)]
    executor.settle(slots, lengths, made.rows)
    own = range(len(slots))
    rows = None if made.row_of is None else made.row_of[: len(own)]
    return CapturedDrafts(part(made.drafts, own), rows, made.rows)


def filled(slots: Seq[int], batch: int) -> list[int]:
    """Slots of a batch, padded with no slot."""
    return [*slots, *[NOWHERE] * (batch - len(slots))]


@cache  # graphs read them for as long as they live
def sure_block(batch: int, device: torch.device) -> ParamBlock:
    """The parameters of sequences that draft their top tokens, made on the device once, before any capture."""
    ones = torch.ones(batch, device=device)
    return ParamBlock(ones, ones > 0, True, True, None, None, None, None, None, None, None)


def _no_rng(any: Tensor) -> KeyedRng:
    """Never drawn from: the top token needs no random number."""
    return KeyedRng(any, any, any)


def _padded(features: Seq[Tensor] | Tensor) -> Tensor:
    """[B, most, d]; what follows a sequence's own is not committed."""
    if isinstance(features, Tensor):
        return features
    return features[0][None] if len(features) == 1 else pad_sequence(list(features), batch_first=True)
