"""A language model as drafter: any executor of a smaller model with the target's tokenizer, driven by a shape."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import Rng
from ...core.shapes.base import Chain, Frontier, Shape, Step, Vocabulary, most_siblings
from ...errors import ForedraftError, UsageError
from ...runtime import FINAL, Executor, Output, Rows
from ...runtime.cuda.captured_passes import CapturedPasses
from ...types import DraftBatch, Kind, SamplingParams, Sequence, Topology, Verdict
from ..base import Drafter, Round
from .captured_drafts import OWNERS, READS, Asked, Draws, can_capture, filled, shape_for
from .native_step import NativeStep
from .pipelined import Pipeline, begin_model

# A drawn tree needs more than one token with mass, so greedy requests are drafted at this temperature (DySpec).
TREE_TEMPERATURE = 0.6
# Text that the draft model has not read yet goes with the first draft step unless it is longer than this.
CATCH_UP = 32


class ModelDrafter(Drafter):
    """Keeps the draft model's K/V in step with the committed text and lets the shape grow drafts on top.

    `vocab_size` is the target's. Models of one tokenizer may pad their vocabularies to different sizes.
    """

    def __init__(
        self,
        executor: Executor,
        shape: Shape,
        vocab_size: int = 0,
        name: str = "draft-model",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if shape.reads > executor.max_scratch:
            raise UsageError(f"a draft of {shape.reads} nodes exceeds the {executor.max_scratch} that fit; shorten it")
        self.name, self.executor, self.shape = name, executor, shape
        self.kinds: frozenset[Kind] = frozenset({shape.kind})
        self.topology: Topology = shape.topology
        self.nodes = shape.nodes
        self.max_length = executor.max_length
        self.vocab_size = vocab_size or executor.vocab_size
        self._vocabulary = vocabulary or _shared_ids(executor, self.vocab_size)
        self.draft_words, self.siblings = min(executor.vocab_size, self.vocab_size), most_siblings(shape)
        self._slots: dict[int, int] = {}  # sequence id -> slot of the draft model's K/V cache
        self._free = list(range(executor.max_slots))[::-1]
        self._read: dict[int, Tensor] = {}  # sequence id -> scratch row of each node, -1 = not read
        self._rows: dict[int, int] = {}  # sequence id -> scratch rows
        self._owner = next(OWNERS)
        self._pipeline = Pipeline()

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Its own ids in the target's; None = the same."""
        return self._vocabulary

    @property
    def gives_states(self) -> bool:
        """Whether its drafts come with its own states, as some judges need them."""
        return isinstance(self.shape, Chain) and self.shape.states

    def give_states(self) -> None:
        """Let its drafts come with its own states from now on; it reads one token more a round for them."""
        if not isinstance(self.shape, Chain):
            raise UsageError(f"drafter {self.name!r} hands over its states with shape chain only")
        self.shape = replace(self.shape, states=True)

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if not self._free:
                raise ForedraftError(f"drafter {self.name!r} has no free slot; lower the batch size")
            slot = self._slots[sequence.id] = self._free.pop()
            self.executor.rollback([slot], [0])

    def end(self, sequences: Seq[Sequence]) -> None:
        self._pipeline.end(sequences)
        for sequence in sequences:
            self._read.pop(sequence.id, None)
            self._rows.pop(sequence.id, None)
            slot = self._slots.pop(sequence.id, None)
            if slot is not None:
                self.executor.drop(slot)
                self._free.append(slot)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        if can_capture(self.executor, self.shape, sequences, self.executor.vocab_size):
            drafts = self._captured(sequences)
            if drafts is not None:
                return drafts
        self._pipeline.drop()
        slots = [self._slots[s.id] for s in sequences]
        block = draft_block(sequences, self.shape, self.executor.vocab_size, self.executor.device)
        stepper = self.new_stepper(False, self.executor, slots, sequences, block, self.shape)
        stepper.vocabulary, stepper.vocab_size = self._vocabulary, self.vocab_size
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.executor.device))
        self._read |= {s.id: row for s, row in zip(sequences, stepper.row_of, strict=True)}
        self._rows |= {s.id: stepper.rows for s in sequences}
        return drafts

    def new_stepper(self, inside: bool, *args: Any) -> ModelStepper:
        """Of one round; inside = while it is captured."""
        return (InsideStepper if inside else ModelStepper)(*args)

    def _captured(self, sequences: Seq[Sequence]) -> DraftBatch | None:
        """The whole round as one CUDA graph; None where it must go step by step."""
        executor, slots = self.executor.capturing, [self._slots[s.id] for s in sequences]
        assert executor is not None
        shape = shape_for(self.shape, sequences)
        known = [min(executor.length(slot), len(s.tokens) - 1) for slot, s in zip(slots, sequences, strict=True)]
        executor.rollback(slots, known)
        unread = [s.tokens[n:] for s, n in zip(sequences, known, strict=True)]
        long = [b for b, run in enumerate(unread) if len(run) > READS[-1]]  # prompts of requests that have just begun
        if long:
            executor.prefill([slots[b] for b in long], [unread[b][:-1] for b in long])
            known = [executor.length(slot) for slot in slots]
            unread = [s.tokens[n:] for s, n in zip(sequences, known, strict=True)]

        def make(
            inside: CapturedPasses, tokens: Tensor, counts: Tensor, features: Tensor | None, block: ParamBlock
        ) -> ModelStepper:
            places = filled(slots, len(counts))
            stepper: Any = self.new_stepper(True, inside, places, sequences, block, shape)
            stepper.vocabulary, stepper.vocab_size = self._vocabulary, self.vocab_size
            stepper.given, stepper.counts = tokens, counts
            return stepper

        params = [draft_params(s.params, self.shape) for s in sequences]
        draws = Draws.of(shape, sequences, params, self.executor.vocab_size)
        round = self._pipeline.round(executor, Asked(shape, slots, unread, make, self._owner, draws=draws), sequences)
        if round is None:
            return None
        made, drafts = round
        assert made.row_of is not None
        self._read |= {s.id: row for s, row in zip(sequences, made.row_of, strict=True)}
        self._rows |= {s.id: made.rows for s in sequences}
        return drafts

    @torch.no_grad()
    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        last, executor = self._pipeline.awaited(sequences), self.executor.capturing
        if last is not None and executor is not None:
            self._pipeline.begun = begin_model(executor, self._owner, last, verdict)

    def observe(self, round: Round) -> None:
        """Keep the K/V of accepted nodes that the draft model has read; it reads the others next time."""
        self._pipeline.observe(round)
        who = [b for b, s in enumerate(round.sequences) if s.id in self._read]
        if not who:
            return
        slots = [self._slots[round.sequences[b].id] for b in who]
        if self.topology is Topology.CHAIN and round.drafts.source is None:  # the host knows it all
            held = [self._rows.pop(round.sequences[b].id) for b in who]
            self.executor.commit(slots, [min(round.accepted[b], n) for b, n in zip(who, held, strict=True)])
            for b in who:
                del self._read[round.sequences[b].id]
            return
        row_of = torch.stack([self._read.pop(round.sequences[b].id) for b in who])  # [b, reads]
        path = round.verdict.path[who].to(self.executor.device)
        if round.drafts.source is not None:
            known = round.drafts.source[who].to(self.executor.device)
            path = torch.where(path >= 0, known.gather(1, path.clamp(min=0)), -1)
        rows = torch.where(path >= 0, row_of.gather(1, path.clamp(min=0)), -1)
        counts = (rows >= 0).sum(dim=1).tolist()  # read nodes are a prefix of every path
        self.executor.commit(slots, counts, None if self.topology is Topology.CHAIN else rows)


def draft_params(params: SamplingParams, shape: Shape) -> SamplingParams:
    """Draft distributions take the request's temperature and truncation, not what depends on its history."""
    if isinstance(shape, Chain) and shape.sure:
        return SamplingParams(temperature=0)
    if shape.topology is Topology.TREE:
        return SamplingParams(temperature=params.temperature or TREE_TEMPERATURE)
    return SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p)


def draft_block(sequences: Seq[Sequence], shape: Shape, vocab_size: int, device: torch.device) -> ParamBlock:
    """The options of drafts. They are never written to, so rounds share them."""
    params = [draft_params(s.params, shape) for s in sequences]
    return _block(tuple((p.temperature, p.top_k, p.top_p, p.min_p) for p in params), vocab_size, device)


@lru_cache(maxsize=64)
def _block(options: tuple[tuple[float, int, float, float], ...], vocab_size: int, device: torch.device) -> ParamBlock:
    return ParamBlock.of([SamplingParams(*each) for each in options], vocab_size, device)


def _shared_ids(executor: Executor, vocab_size: int) -> Vocabulary | None:
    """Where the target has ids that the draft model lacks, the draft model's distribution ends before them."""
    own = executor.vocab_size
    if own >= vocab_size:
        return None
    index = torch.full((vocab_size,), -1, dtype=torch.int64, device=executor.device)
    ids = torch.arange(own, device=executor.device)
    index[:own] = ids
    return Vocabulary(ids, index)


class ModelStepper:
    """One round of a draft model over its sequences."""

    vocabulary: Vocabulary | None = None
    vocab_size: int | None = None
    tracks = True  # whether the scratch row of every node will be needed

    def __init__(
        self, executor: Executor, slots: list[int], sequences: Seq[Sequence], block: ParamBlock, shape: Shape
    ) -> None:
        self.executor, self.slots, self.block = executor, slots, block
        self.tokens = [s.tokens for s in sequences]
        self.batch, self.ids, self.device = len(slots), tuple(s.id for s in sequences), executor.device
        self._rooms = max(shape.numbered, 1) + 1
        self._row_below: Tensor | None = None  # [B, rooms] scratch row of every node, root first; chains need none
        self.rows = 0  # scratch rows so far, the same for every sequence
        self._front: int | None = None  # first of those of the newest frontier; None = only the root was read
        self._chain = shape.topology is Topology.CHAIN
        self._native = executor.compiled is not None

    @property
    def row_of(self) -> Tensor:
        """[B, numbered] scratch row of every node, -1 = not read."""
        if self._chain:  # node after node
            number = torch.arange(self._rooms - 1, device=self.device)
            return torch.where(number < self.rows, number, -1).expand(self.batch, -1)
        return self._below()[:, 1:]

    def _below(self) -> Tensor:
        if self._row_below is None:
            shape = (self.batch, self._rooms)
            self._row_below = torch.full(shape, -1, dtype=torch.int64, device=self.device)
        return self._row_below

    def root(self) -> Step:
        """Read what was committed since the last round, the pending token included."""
        known = [min(self.executor.length(s), len(t) - 1) for t, s in zip(self.tokens, self.slots, strict=True)]
        self.executor.rollback(self.slots, known)  # forgets what a round that failed half-way has left
        missing = [t[n:] for t, n in zip(self.tokens, known, strict=True)]
        long = [b for b, run in enumerate(missing) if len(run) > CATCH_UP]
        if long:
            self.executor.prefill([self.slots[b] for b in long], [missing[b][:-1] for b in long])
            missing = [run[-1:] if b in long else run for b, run in enumerate(missing)]
        out = self.executor.forward(Rows.chains(self.slots, missing, self.device))
        self.executor.commit(self.slots, [len(run) for run in missing])
        last = torch.tensor([[len(run) - 1] for run in missing], device=self.device)
        return self._step(out, out.index.gather(1, last))

    def expand(self, frontier: Frontier) -> Step:
        out = self.executor.forward(self._place(frontier))
        return self._step(out, out.index)

    def _place(self, frontier: Frontier) -> Rows:
        """The next scratch rows, for the nodes of a frontier."""
        batch, width = frontier.token.shape
        above = None if self._chain else self._rows_above(frontier).reshape(-1)
        if not self._chain and (self.tracks or frontier.above is None):
            new = torch.arange(self.rows, self.rows + width, device=self.device).expand(batch, width)
            self._below().scatter_(1, frontier.node + 1, new)
        self._front, self.rows = self.rows, self.rows + width
        return Rows(
            slots=tuple(self.slots),
            counts=(width,) * batch,
            token=frontier.token.reshape(-1),
            depth=(frontier.node if self._chain else frontier.depth - 1).reshape(-1),
            parent=above,
        )

    def _rows_above(self, frontier: Frontier) -> Tensor:
        """[B, w] scratch rows of the parents, -1 = the committed text."""
        if frontier.above is None:
            return self._below().gather(1, frontier.parent + 1)
        return frontier.parent if self._front is None else frontier.above + self._front  # of the root's children -1

    def _step(self, out: Output, rows: Tensor) -> Step:
        logits = out.logits if self.vocab_size is None else out.logits[:, : self.vocab_size]
        kind = NativeStep if self._native else Step
        return kind(logits, rows, self.block, out.hidden[FINAL], self.vocabulary)


class InsideStepper(ModelStepper):
    """The same inside a captured round: what is new is read from the device."""

    executor: CapturedPasses  # type: ignore[assignment]
    captured = True  # shapes must do all in tensors
    given: Tensor  # [B, W] tokens
    counts: Tensor  # [B]

    def root(self) -> Step:
        out = self.executor.read(self.given, self.counts)
        return self._step(out, out.index)
