"""Drafts with Falcon's head: a call yields the distributions of the next k levels, whatever is drafted on them.

The head's K/V holds a slot for each pair (feature t, token t + 1). A block is the last k slots of a path: those of
verified text first, later the tokens of a drafted path with the features that the block before it has said. Levels
inside a block cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ....core.distributions.sampling import ParamBlock
from ....core.rng.keyed import Rng
from ....core.shapes.base import Frontier, Shape, Step, Vocabulary
from ....models.decoder import FINAL
from ....models.heads import FalconHead
from ....models.heads.blocks.falcon import State
from ....runtime import Rows, TorchExecutor
from ....runtime.torch.executor import CHUNK
from ....types import DraftBatch, Sequence
from ...base import Round, propose_for
from ..draft_model import ModelDrafter, draft_block
from ..kept_features import accepted_rows


@dataclass(slots=True)
class Tail:
    """What is kept of a sequence's slots: how many were encoded, the last k as the layer reads them, the state."""

    count: int
    streams: Tensor  # [at most k, d]
    state: State | None


class FalconDrafter(ModelDrafter):
    """Runs in torch: rows of a block see one another, which the other executors' masks do not have."""

    executor: TorchExecutor

    def __init__(
        self, head: FalconHead, shape: Shape, vocabulary: Vocabulary, slots: int, max_length: int, name: str = "falcon"
    ) -> None:
        executor = TorchExecutor(head, slots, max_length, shape.reads * head.size + CHUNK)
        super().__init__(executor, shape, len(vocabulary.index), name, vocabulary)
        self.head, self.taps = head, frozenset(head.taps)
        head.rnn.float()  # one small product a step, which the recurrence repeats: its rounding would add up
        self._features: dict[int, list[Tensor]] = {}  # sequence id -> features of slots that are not encoded yet
        self.tails: dict[int, Tail] = {}

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._features.pop(sequence.id, None)
            self.tails.pop(sequence.id, None)

    @torch.no_grad()
    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, states in zip(sequences, hidden, strict=True):
            self._keep(sequence.id, states[FINAL])

    @torch.no_grad()
    def observe(self, round: Round) -> None:
        rows, counts = accepted_rows(round)
        news = torch.split(round.out.hidden[FINAL][rows], counts)
        for sequence, new in zip(round.sequences, news, strict=True):
            self._keep(sequence.id, new)

    def _keep(self, sequence: int, states: Tensor) -> None:
        feature = self.head.feature([states.to(self.executor.device)])
        self._features.setdefault(sequence, []).append(feature)

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        whole = [len(s.tokens) > self.head.size for s in sequences]  # else there is no block to begin from
        return propose_for(whole, sequences, rng, self._propose)

    def _propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        block = draft_block(sequences, self.shape, self.executor.vocab_size, self.executor.device)
        return self.shape.grow(
            FalconStepper(self, sequences, block), [s.budget for s in sequences], rng.to(self.executor.device)
        )

    def encoded(self, sequence: Sequence) -> tuple[int, Tensor, State]:
        """Where the slots to be read begin, their streams [n, d], the last k among them, and the state after them."""
        kept = self.tails.get(sequence.id) or Tail(0, torch.empty((0, self.executor.hidden_size)), None)
        streams, state = kept.streams.to(self.executor.device), kept.state
        waiting = self._features.pop(sequence.id, [])
        if waiting and (features := torch.cat(waiting)).shape[0]:
            tokens = torch.tensor(sequence.tokens[kept.count + 1 :], device=features.device)
            embeds = F.embedding(tokens, self.head.embedding)
            new, state = self.head.encode(embeds[None], features[None], state)
            streams = torch.cat((streams, new[0].to(streams.dtype)))
        assert state is not None
        begin = len(sequence.tokens) - 1 - len(streams)
        self.tails[sequence.id] = Tail(len(sequence.tokens) - 1, streams[-self.head.size :], state)
        return begin, streams, state

    def slot(self, sequence: Sequence) -> int:
        return self._slots[sequence.id]


class FalconStepper:
    """One round. Shapes read level by level; every k-th level is a pass."""

    def __init__(self, drafter: FalconDrafter, sequences: Seq[Sequence], block: ParamBlock) -> None:
        self.drafter, self.head, self.executor = drafter, drafter.head, drafter.executor
        self.sequences, self.block, self.size = sequences, block, drafter.head.size
        self.slots = [drafter.slot(s) for s in sequences]
        self.batch, self.ids, self.device = len(sequences), tuple(s.id for s in sequences), drafter.executor.device
        rooms = (self.batch, max(drafter.shape.numbered, 1) + 1)  # nodes, root first
        self._token, self._above, self._block = (torch.zeros(rooms, dtype=torch.int64) for _ in range(3))
        self._depth = self._rows = 0
        self._first = -1  # scratch row of the newest blocks' first; -1 = they are committed

    def root(self) -> Step:
        """Read the slots that verification has settled; the last k of them are the first block."""
        found = [self.drafter.encoded(s) for s in self.sequences]
        self.executor.rollback(self.slots, [begin for begin, _, _ in found])
        streams = [run for _, run, _ in found]
        while max(map(len, streams)) > CHUNK:  # a prompt, in passes of their own
            cuts = [min(len(run) - self.size, CHUNK) if len(run) > CHUNK else 0 for run in streams]
            long = [b for b, cut in enumerate(cuts) if cut]
            self._settle(long, [streams[b][: cuts[b]] for b in long])
            streams = [run[cut:] for run, cut in zip(streams, cuts, strict=True)]
        hidden, index = self._settle(list(range(self.batch)), streams)
        last = torch.tensor([[len(run) - self.size + i for i in range(self.size)] for run in streams])
        self._take(hidden[index.gather(1, last.to(self.device))][:, None])
        self._state = tuple(torch.cat([state[i] for _, _, state in found], dim=1)[:, :, None] for i in (0, 1))
        return self._step(torch.zeros((self.batch, 1), dtype=torch.int64))

    def expand(self, frontier: Frontier) -> Step:
        self._depth += 1
        node, above = frontier.node.cpu() + 1, frontier.parent.cpu() + 1
        self._token.scatter_(1, node, frontier.token.cpu())
        self._above.scatter_(1, node, above)
        before = self._block.gather(1, above)
        if self._depth % self.size == 0:
            self._next_block(self._path(node), before)
            before = torch.arange(node.shape[1]).expand_as(node)
        self._block.scatter_(1, node, before)
        return self._step(before)

    def _path(self, node: Tensor) -> Tensor:
        """[B, w, k] tokens of the last k nodes down to these."""
        found = []
        for _ in range(self.size):
            found.append(self._token.gather(1, node))
            node = self._above.gather(1, node)
        return torch.stack(found[::-1], dim=2).to(self.device)

    def _next_block(self, tokens: Tensor, before: Tensor) -> None:
        """A pass over the blocks that end with these paths [B, w, k], after blocks `before` [B, w]."""
        batch, width, size = tokens.shape
        who = torch.arange(batch)[:, None]
        state = tuple(part[:, who, before].flatten(1, 2).contiguous() for part in self._state)
        embeds = F.embedding(tokens, self.head.embedding).flatten(0, 1)
        stream, after = self.head.encode(embeds, self._backs[who, before].flatten(0, 1), (state[0], state[1]))
        inside = torch.arange(size)
        own = self._rows + torch.arange(width)[:, None] * size + inside - 1  # the row before, in the block
        above = own.expand(batch, -1, -1).clone()
        above[:, :, 0] = -1 if self._first < 0 else self._first + before * size + size - 1
        depth = (self._depth - size + inside).expand(batch, width, -1)
        token, depth, above = (x.flatten().to(self.device) for x in (tokens, depth, above))
        rows = Rows(tuple(self.slots), (width * size,) * batch, token, depth, above, size)
        hidden = self._pass(rows, stream.flatten(0, 1))
        self._first, self._rows = self._rows, self._rows + width * size
        self._state = tuple(part.view(len(part), batch, width, -1) for part in after)
        self._take(hidden.view(batch, width, size, -1))

    def _take(self, hidden: Tensor) -> None:
        """Streams [B, w, k, d] that leave the layer: features for the next blocks, logits of k levels."""
        self._backs, self._width = self.head.back(hidden), hidden.shape[1]
        self._logits = self.head.logits(self.head.finish(hidden).flatten(0, 2))

    def _step(self, blocks: Tensor) -> Step:
        """The distributions at this depth after nodes in `blocks` [B, w]."""
        first = torch.arange(self.batch)[:, None] * self._width
        rows = (first + blocks) * self.size + self._depth % self.size
        return Step(self._logits, rows.to(self.device), self.block, None, self.drafter.vocabulary)

    def _settle(self, who: list[int], streams: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Read slots of verified text for good; streams after the layer, and where each sequence's lie."""
        slots = [self.slots[b] for b in who]
        rows = Rows.chains(slots, [[0] * len(run) for run in streams], self.device)  # the layer reads no tokens
        rows = Rows(rows.slots, rows.counts, rows.token, rows.depth, None, block=self.size)
        hidden = self._pass(rows, torch.cat(streams))
        self.executor.commit(slots, [len(run) for run in streams])
        return hidden, rows.index()

    def _pass(self, rows: Rows, stream: Tensor) -> Tensor:
        every = range(self.executor.num_layers)
        hidden, _ = self.executor.forward_layers(self.executor.place(rows), stream.to(self.executor.dtype), every)
        return hidden
