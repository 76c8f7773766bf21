"""Drafts with a head of the EAGLE family: one small layer over the target's own states.

The head's K/V holds a slot for each pair (target state at t, token t + 1). Slots of verified text are made from true
states; those of a round's drafts, from what the head hands back to itself, are forgotten when the round is over.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ..core.dice import Dice
from ..core.sampling import ParamBlock
from ..core.shape import Frontier, Shape, Step, Vocabulary
from ..models.heads import FeatureHead
from ..runtime import Output, Rows, TorchExecutor, executor_for
from ..types import DraftBatch, Sequence
from ..types.drafts import empty_drafts
from .base import Round
from .model import CATCH_UP, ModelDrafter, ModelStepper, draft_params


class FeatureDrafter(ModelDrafter):
    """Follows the target's states and lets the shape grow drafts from the newest of them."""

    executor: TorchExecutor

    def __init__(
        self, head: FeatureHead, shape: Shape, vocabulary: Vocabulary, slots: int, max_length: int, name: str
    ) -> None:
        executor = executor_for(head, slots, max_length, max(shape.reads, CATCH_UP))
        super().__init__(executor, shape, len(vocabulary.index), name, vocabulary)
        self.head = head
        self.taps = frozenset(head.taps)
        self._features: dict[int, Tensor] = {}  # sequence id -> features of the last slots, those unread included

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._features.pop(sequence.id, None)

    @torch.no_grad()
    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, states in zip(sequences, hidden, strict=True):
            if len(states[self.head.taps[0]]):
                self._keep(sequence.id, self.head.feature([states[tap] for tap in self.head.taps]))

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], dice: Dice) -> DraftBatch:
        if not all(s.id in self._features for s in sequences):  # a prompt of one token has no state yet
            return empty_drafts(len(sequences), self.executor.device)
        slots = [self._slots[s.id] for s in sequences]
        params = [draft_params(s.params, self.topology) for s in sequences]
        block = ParamBlock.of(params, self.executor.vocab_size, self.executor.device)
        features = [self._features[s.id] for s in sequences]
        stepper = FeatureStepper(self.head, self.executor, slots, sequences, block, self.shape)
        stepper.vocabulary, stepper.features = self._vocabulary, features
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], dice)
        if drafts.width:  # else nothing was read
            self._features |= {s.id: kept[-1:] for s, kept in zip(sequences, features, strict=True)}
        return drafts

    @torch.no_grad()
    def observe(self, round: Round) -> None:
        """Keep the target's states at the pending token and at every accepted node: they are new slots."""
        rows, counts = accepted_rows(round)
        features = self.head.feature([round.out.hidden[tap][rows] for tap in self.head.taps])
        for sequence, new in zip(round.sequences, torch.split(features, counts), strict=True):
            self._keep(sequence.id, new)

    def _keep(self, sequence: int, new: Tensor) -> None:
        old = self._features.get(sequence)
        self._features[sequence] = new if old is None else torch.cat((old, new))


class FeatureStepper(ModelStepper):
    """One round of a feature head over its sequences."""

    features: list[Tensor]

    def __init__(
        self,
        head: FeatureHead,
        executor: TorchExecutor,
        slots: list[int],
        sequences: Seq[Sequence],
        block: ParamBlock,
        shape: Shape,
    ) -> None:
        super().__init__(executor, slots, sequences, block, shape)
        self.head, self._taps = head, (head.config.num_layers,)
        self._back = torch.zeros(  # what the head handed back behind each node; row 0 is the root
            (self.batch, max(shape.numbered, 1) + 1, head.config.hidden_size), dtype=head.dtype, device=self.device
        )

    def root(self) -> Step:
        """Read the slots that verification has settled; the newest one predicts the first draft."""
        unread, tokens = self._unread()
        while max(len(run) for run in unread) > CATCH_UP:  # a prompt: all but its last slots, in passes of their own
            long = [b for b, run in enumerate(unread) if len(run) > CATCH_UP]
            self._settle(long, [unread[b][:CATCH_UP] for b in long], [tokens[b][:CATCH_UP] for b in long])
            unread = [run[CATCH_UP:] if b in long else run for b, run in enumerate(unread)]
            tokens = [run[CATCH_UP:] if b in long else run for b, run in enumerate(tokens)]
        out = self._settle(list(range(self.batch)), unread, tokens)
        last = torch.tensor([[len(run) - 1] for run in unread], device=self.device)
        rows = out.index.gather(1, last)
        self._back[:, 0] = self.head.back(out.hidden[self._taps[0]][rows[:, 0]])
        return self._step(out, rows)

    def expand(self, frontier: Frontier) -> Step:
        above = (frontier.parent + 1)[:, :, None].expand(-1, -1, self._back.shape[2])
        embeds = self.head.embed(frontier.token.reshape(-1))
        joined = self.head.join(embeds, self._back.gather(1, above).flatten(0, 1))
        out = self.executor.forward_embeds(self._place(frontier), joined, self._taps)
        back = self.head.back(out.hidden[self._taps[0]])[out.index]
        self._back.scatter_(1, (frontier.node + 1)[:, :, None].expand_as(back), back)
        return self._step(out, out.index)

    def _unread(self) -> tuple[list[Tensor], list[list[int]]]:
        """Features of slots that the K/V lacks, and the token that goes with each; always at least the newest."""
        features, tokens, known = [], [], []
        for slot, text, kept in zip(self.slots, self.tokens, self.features, strict=True):
            first = len(text) - 1 - len(kept)  # the slot of kept[0]; slot t goes with token t + 1
            have = max(first, min(self.executor.length(slot), len(text) - 2))
            features.append(kept[have - first :])
            tokens.append(text[have + 1 :])
            known.append(have)
        self.executor.rollback(self.slots, known)
        return features, tokens

    def _settle(self, who: list[int], features: list[Tensor], tokens: list[list[int]]) -> Output:
        """Read slots of verified text for good."""
        slots = [self.slots[b] for b in who]
        rows = Rows.chains(slots, tokens, self.device)
        joined = self.head.join(self.head.embed(rows.token), torch.cat(features))
        out = self.executor.forward_embeds(rows, joined, self._taps)
        self.executor.commit(slots, [len(run) for run in tokens])
        return out


def accepted_rows(round: Round) -> tuple[Tensor, list[int]]:
    """Packed rows of each sequence's pending token and accepted nodes, behind one another, and how many each has."""
    counts = [n + 1 for n in round.accepted]
    path = round.verdict.path[:, : max(counts) - 1]
    rows = torch.cat((torch.zeros_like(path[:, :1]) if path.shape[1] else path.new_zeros(len(counts), 1), path + 1), 1)
    wanted = torch.arange(rows.shape[1], device=rows.device)[None, :] < rows.new_tensor(counts)[:, None]
    return round.out.index.gather(1, rows.clamp(min=0))[wanted], counts
