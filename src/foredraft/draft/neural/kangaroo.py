"""Kangaroo: the target's own first layers draft, an adapter reads their stream, and verification goes on from there.

Drafted tokens run through the shared layers once, in the target's own K/V; what is left of the verification pass are
the layers above. The adapter's own K/V holds one slot per token, made from the stream that leaves the shared layers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import Rng
from ...core.shapes.base import Chain, Frontier, Step, Vocabulary
from ...models.heads import KangarooHead
from ...runtime import Output, Rows, TorchExecutor, executor_for
from ...types import DraftBatch, Sequence
from ...types.drafts import Started
from ..base import Round
from .draft_model import CATCH_UP, ModelDrafter, draft_block
from .kept_features import accepted_rows


class KangarooDrafter(ModelDrafter):
    """Chains only: their rows lie in the target's K/V as verification wants them."""

    executor: TorchExecutor  # of the adapter

    def __init__(
        self, head: KangarooHead, target: TorchExecutor, shape: Chain, vocabulary: Vocabulary, name: str = "kangaroo"
    ) -> None:
        adapter = head.alone()
        executor = executor_for(adapter, target.max_slots, target.max_length, max(shape.reads, CATCH_UP))
        super().__init__(executor, shape, len(vocabulary.index), name, vocabulary)
        self.head, self.target, self.layer = head, target, head.taps[0]
        self.taps = frozenset(head.taps)
        self._streams: dict[int, Tensor] = {}  # sequence id -> streams of the newest tokens but the pending one

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._streams.pop(sequence.id, None)

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, states in zip(sequences, hidden, strict=True):
            self._keep(sequence.id, states[self.layer])

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        block = draft_block(sequences, self.shape, self.executor.vocab_size, self.executor.device)
        stepper = KangarooStepper(self, sequences, block)
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], rng)
        if drafts.width == 0:  # nothing was read
            return drafts
        self._streams |= {s.id: self._streams[s.id][:0] for s in sequences if s.id in self._streams}
        return replace(drafts, started=Started(self.layer, stepper.finish(drafts.token[:, -1])))

    def observe(self, round: Round) -> None:
        """Streams of accepted nodes; the pending token's was read while drafting, if anything was drafted."""
        rows, counts = accepted_rows(round)
        parts = torch.split(round.out.hidden[self.layer][rows], counts)
        for sequence, new in zip(round.sequences, parts, strict=True):
            self._keep(sequence.id, new)

    def unread(self, sequence: Sequence) -> Tensor:
        """Streams of committed tokens that the adapter has not read, the pending one's excepted."""
        kept = self._streams.get(sequence.id)
        if kept is None:
            return torch.empty((0, self.target.hidden_size), dtype=self.target.dtype, device=self.target.device)
        slot = self._slots[sequence.id]
        first = len(sequence.tokens) - 1 - len(kept)  # the place of kept[0]
        known = max(first, min(self.executor.length(slot), len(sequence.tokens) - 1))
        self.executor.rollback([slot], [known])
        return kept[known - first :]

    def slot(self, sequence: Sequence) -> int:
        return self._slots[sequence.id]

    def words(self) -> Vocabulary | None:
        return self._vocabulary

    def _keep(self, sequence: int, new: Tensor) -> None:
        old = self._streams.get(sequence)
        self._streams[sequence] = new if old is None else torch.cat((old, new))


class KangarooStepper:
    """One round: every token goes through the shared layers in the target's slots, then through the adapter."""

    def __init__(self, drafter: KangarooDrafter, sequences: Seq[Sequence], block: ParamBlock) -> None:
        self.drafter, self.sequences, self.block = drafter, sequences, block
        self.batch, self.ids = len(sequences), tuple(s.id for s in sequences)
        self.device = drafter.executor.device
        self.target_slots = [s.slot for s in sequences]
        self.slots = [drafter.slot(s) for s in sequences]
        self._shared: list[Tensor] = []  # [B, d] streams of the pending token and of the nodes, in order

    def root(self) -> Step:
        """The pending token, and whatever was accepted since the last round."""
        drafter = self.drafter
        lengths = [len(s.tokens) - 1 for s in self.sequences]
        drafter.target.rollback(self.target_slots, lengths)
        pending = torch.tensor([s.tokens[-1] for s in self.sequences], device=self.device)
        self._run_shared(pending, 0)
        unread = [drafter.unread(s) for s in self.sequences]
        while max(len(run) for run in unread) >= CATCH_UP:  # a prompt, in passes of their own
            long = [b for b, run in enumerate(unread) if len(run) >= CATCH_UP]
            self._settle(long, [unread[b][:CATCH_UP] for b in long])
            unread = [run[CATCH_UP:] if b in long else run for b, run in enumerate(unread)]
        joined = [torch.cat((run, self._shared[0][b : b + 1])) for b, run in enumerate(unread)]
        out = self._settle(list(range(self.batch)), joined)
        last = torch.tensor([[len(run) - 1] for run in joined], device=self.device)
        return Step(out.logits, out.index.gather(1, last), self.block, out.hidden[-1], drafter.words())

    def expand(self, frontier: Frontier) -> Step:
        depth = len(self._shared)
        self._run_shared(frontier.token[:, 0], depth)
        rows = self._rows(self.slots, frontier.token[:, 0], depth - 1)
        out = self.drafter.executor.forward_embeds(rows, self._shared[-1])
        return Step(out.logits, out.index, self.block, out.hidden[-1], self.drafter.words())

    def finish(self, last: Tensor) -> Tensor:
        """The last drafted token runs through the shared layers too; returns all streams, [B, N + 1, d]."""
        self._run_shared(last, len(self._shared))
        return torch.stack(self._shared, dim=1)

    def _run_shared(self, token: Tensor, depth: int) -> None:
        target = self.drafter.target
        placement = target.place(self._rows(self.target_slots, token, depth))
        stream, _ = target.forward_layers(placement, target.embed(token), range(self.drafter.layer))
        self._shared.append(stream)

    def _rows(self, slots: list[int], token: Tensor, depth: int) -> Rows:
        return Rows(tuple(slots), (1,) * self.batch, token, torch.full_like(token, depth))

    def _settle(self, who: list[int], streams: list[Tensor]) -> Output:
        executor, slots = self.drafter.executor, [self.slots[b] for b in who]
        rows = Rows.chains(slots, [[0] * len(run) for run in streams], self.device)  # the adapter reads no tokens
        out = executor.forward_embeds(rows, torch.cat(streams))
        executor.commit(slots, [len(run) for run in streams])
        return out
