"""S2D: a drafter of several depths. Every token leaves it at the first exit that is confident enough.

A token that left early has no keys and values in the layers above. Its stream waits at that exit; when a later token
goes on, all that wait go with it in one pass. So the K/V holds, for each segment of layers, the text up to a place of
its own, and verification cuts all of them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...control.exit_choice import ExitChoice
from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import Rng
from ...core.shapes.base import Chain, Frontier, Step, Vocabulary
from ...models.heads import SortedDraft
from ...runtime import Rows, TorchExecutor, executor_for
from ...runtime.torch.executor import CHUNK
from ...types import DraftBatch, Sequence
from ..base import Round
from .draft_model import CATCH_UP, ModelDrafter, draft_block


@dataclass(slots=True)
class Depths:
    """How much of a text each segment has read, and the streams [n, d] that wait in front of each."""

    filled: list[int]
    waiting: list[Tensor] = field(default_factory=list)

    def cut(self, length: int) -> None:
        """Forget what lies beyond the verified text."""
        self.filled = [min(n, length) for n in self.filled]
        for j in range(1, len(self.filled)):
            self.waiting[j] = self.waiting[j][: self.filled[j - 1] - self.filled[j]]


class SortedDrafter(ModelDrafter):
    """Chains. `thresholds`: how confident each exit but the last must be; `choice` may forbid the deepest ones."""

    executor: TorchExecutor

    def __init__(
        self,
        head: SortedDraft,
        shape: Chain,
        vocabulary: Vocabulary,
        slots: int,
        max_length: int,
        choice: ExitChoice,
        threshold: float = 0.5,
        name: str = "s2d",
    ) -> None:
        executor = executor_for(head, slots, max_length, max(shape.reads, CATCH_UP))
        super().__init__(executor, shape, len(vocabulary.index), name, vocabulary)
        self.head, self.choice, self.threshold = head, choice, threshold
        self._depths: dict[int, Depths] = {}

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._depths.pop(sequence.id, None)
            self.choice.end(sequence.id)

    def depths(self, sequence: Sequence) -> Depths:
        if sequence.id not in self._depths:
            none = torch.empty((0, self.executor.hidden_size), dtype=self.executor.dtype, device=self.executor.device)
            count = len(self.head.exits)
            self._depths[sequence.id] = Depths([0] * count, [none] * count)
        return self._depths[sequence.id]

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        block = draft_block(sequences, self.shape, self.executor.vocab_size, self.executor.device)
        limit = max(s.budget.chain for s in sequences)
        with self.choice.round([s.id for s in sequences], limit) as chosen:
            for sequence in sequences:
                self.depths(sequence).cut(len(sequence.tokens) - 1)  # a round that failed half-way has left more
            stepper = SortedStepper(self, sequences, block, chosen.exit)
            drafts = self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.executor.device))
            chosen.drafted = drafts.width
        return drafts

    def observe(self, round: Round) -> None:
        came_of = zip(round.sequences, round.own_depths(), round.own_accepted(), strict=True)
        for sequence, drafted, accepted in came_of:
            self.depths(sequence).cut(len(sequence.tokens) + accepted)
            self.choice.observe(sequence.id, drafted, accepted)

    def slot(self, sequence: Sequence) -> int:
        return self._slots[sequence.id]


class SortedStepper:
    """One round."""

    def __init__(self, drafter: SortedDrafter, sequences: Seq[Sequence], block: ParamBlock, deepest: int) -> None:
        self.drafter, self.sequences, self.block, self.deepest = drafter, sequences, block, deepest
        self.executor, self.head = drafter.executor, drafter.head
        self.batch, self.ids, self.device = len(sequences), tuple(s.id for s in sequences), drafter.executor.device

    def root(self) -> Step:
        """Read what was committed since the last round, the pending token included."""
        texts = [s.tokens[self.drafter.depths(s).filled[0] :] for s in self.sequences]
        while max(map(len, texts)) > CATCH_UP:  # a prompt, to the full depth in passes of its own
            long = [b for b, text in enumerate(texts) if len(text) > CATCH_UP]
            self._read(long, [texts[b][:CATCH_UP] for b in long], whole=True)
            texts = [text[CATCH_UP:] if b in long else text for b, text in enumerate(texts)]
        return self._read(list(range(self.batch)), texts)

    def expand(self, frontier: Frontier) -> Step:
        return self._read(list(range(self.batch)), frontier.token.tolist())

    def _read(self, who: list[int], texts: list[list[int]], whole: bool = False) -> Step:
        """New tokens of some sequences, each to the exit where it is sure of the next one."""
        flat = torch.tensor([token for text in texts for token in text], device=self.device)
        arriving = dict(zip(who, torch.split(self.executor.embed(flat), list(map(len, texts))), strict=True))
        found: dict[int, Tensor] = {}
        last = len(self.head.exits) - 1 if whole else self.deepest
        for j in range(last + 1):
            arriving = self._segment(j, arriving)
            going = set(arriving)
            if not whole:
                ends = torch.stack([stream[-1] for stream in arriving.values()])
                logits = self.executor.head(ends)[1]
                sure = (logits.float().softmax(-1).amax(-1) >= self.drafter.threshold).tolist()
                for b, row, enough in zip(arriving, logits, sure, strict=True):
                    found[b] = row
                    going -= {b} if enough or j == last else set()
            self._wait(j + 1, {b: stream for b, stream in arriving.items() if b not in going})
            arriving = {b: stream for b, stream in arriving.items() if b in going}
            if not arriving:
                break
        if whole:
            return Step(torch.empty((0, 0)), torch.empty((0, 0)), self.block)
        rows = torch.arange(self.batch, device=self.device)[:, None]
        return Step(torch.stack([found[b] for b in who]), rows, self.block, None, self.drafter.vocabulary)

    def _segment(self, j: int, arriving: dict[int, Tensor]) -> dict[int, Tensor]:
        """Streams that enter a segment, and those that waited in front of it -> all of them after it."""
        joined = {b: torch.cat((self._depths(b).waiting[j], stream)) for b, stream in arriving.items()}
        done: dict[int, list[Tensor]] = {b: [] for b in joined}
        while joined:  # what has waited long goes in several passes
            parts = {b: stream[:CHUNK] for b, stream in joined.items()}
            for b, stream in self._pass(j, parts).items():
                done[b].append(stream)
            joined = {b: stream[CHUNK:] for b, stream in joined.items() if len(stream) > CHUNK}
        for b in done:
            self._depths(b).waiting[j] = self._depths(b).waiting[j][:0]
        return {b: torch.cat(streams) for b, streams in done.items()}

    def _pass(self, j: int, parts: dict[int, Tensor]) -> dict[int, Tensor]:
        slots = [self.drafter.slot(self.sequences[b]) for b in parts]
        counts = [len(stream) for stream in parts.values()]
        self.executor.stand_at(slots, [self._depths(b).filled[j] for b in parts])
        rows = Rows.chains(slots, [[0] * count for count in counts], self.device)  # streams, no tokens
        placement, streams = self.executor.place(rows), torch.cat(list(parts.values()))
        out, _ = self.executor.forward_layers(placement, streams, self.head.segments[j])
        for b, count in zip(parts, counts, strict=True):
            self._depths(b).filled[j] += count
        return dict(zip(parts, torch.split(out, counts), strict=True))

    def _depths(self, b: int) -> Depths:
        return self.drafter.depths(self.sequences[b])

    def _wait(self, j: int, streams: dict[int, Tensor]) -> None:
        """These go no further; they wait in front of the next segment."""
        if j == len(self.head.exits):
            return
        for b, stream in streams.items():
            self._depths(b).waiting[j] = torch.cat((self._depths(b).waiting[j], stream))
