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
from ..runtime import Executor, Output, Rows, TorchExecutor, executor_for
from ..runtime.graphs import GraphExecutor
from ..runtime.inside import Inside
from ..runtime.recorder import Recorder
from ..runtime.torch_executor import CHUNK
from ..types import DraftBatch, Sequence
from ..types.drafts import empty_drafts
from .base import Round
from .model import CATCH_UP, ModelDrafter, ModelStepper, draft_params
from .recorded import can_record, record_round, sure_block


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
        # sequence id -> features of the last slots, those unread included, in parts
        self._features: dict[int, list[Tensor]] = {}

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
        if can_record(self.executor, self.shape, sequences):
            made = self._recorded(sequences)
            if made is not None:
                return made
        slots = [self._slots[s.id] for s in sequences]
        params = [draft_params(s.params, self.topology) for s in sequences]
        block = ParamBlock.of(params, self.executor.vocab_size, self.executor.device)
        features = self._joined(sequences)
        stepper = FeatureStepper(self.head, self.executor, slots, sequences, block, self.shape)
        stepper.vocabulary, stepper.features = self._vocabulary, features
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], dice)
        if drafts.width:  # else nothing was read
            self._features |= {s.id: [kept[-1:]] for s, kept in zip(sequences, features, strict=True)}
        return drafts

    def _joined(self, sequences: Seq[Sequence]) -> list[Tensor]:
        parts = [self._features[s.id] for s in sequences]
        return [part[0] if len(part) == 1 else torch.cat(part) for part in parts]

    def _recorded(self, sequences: Seq[Sequence]) -> DraftBatch | None:
        """The whole round as one recorded function; None where it must go step by step."""
        executor, slots = self.executor, [self._slots[s.id] for s in sequences]
        assert isinstance(executor, GraphExecutor)
        kept = self._joined(sequences)
        features, unread = unread_slots(executor, slots, [s.tokens for s in sequences], kept)

        def make(inside: Inside, tokens: Tensor, counts: Tensor, given: Tensor | None) -> InsideStepper:
            block = sure_block(len(slots), inside.device)
            stepper = InsideStepper(self.head, inside, slots, sequences, block, self.shape)  # type: ignore[arg-type]
            stepper.vocabulary, stepper.given, stepper.counts = self._vocabulary, tokens, counts
            assert given is not None
            stepper.states = given
            return stepper

        made = record_round(executor, self.shape, slots, unread, make, id(self), features)
        if made is None:
            return None
        self._features |= {s.id: [line[-1:]] for s, line in zip(sequences, kept, strict=True)}
        return made.drafts

    @torch.no_grad()
    def observe(self, round: Round) -> None:
        """Keep the target's states at the pending token and at every accepted node: they are new slots."""
        if round.out.lasting and isinstance(self.executor, GraphExecutor):
            padded = self._recorded_features(self.executor.recorder, round)
            news = [padded[b, : n + 1] for b, n in enumerate(round.accepted)]
        else:
            rows, counts = accepted_rows(round)
            features = self.head.feature([round.out.hidden[tap][rows] for tap in self.head.taps])
            news = list(torch.split(features, counts))
        for sequence, new in zip(round.sequences, news, strict=True):
            self._keep(sequence.id, new)

    def _recorded_features(self, recorder: Recorder, round: Round) -> Tensor:
        """[B, D + 1, d] features along the accepted paths, padded; for outputs that stay where they are."""
        path, index = round.verdict.path, round.out.index
        states = [round.out.hidden[tap] for tap in self.head.taps]

        def body() -> Tensor:
            rows = torch.cat((torch.zeros_like(index[:, :1]), path.clamp(min=-1) + 1), dim=1)
            packed = index.gather(1, rows)
            return self.head.feature([state[packed.flatten()] for state in states]).view(*packed.shape, -1)

        key = ("features", id(self), *(x.data_ptr() for x in (path, index, *states)))
        return recorder.run(key, body, (), after=1)

    def _keep(self, sequence: int, new: Tensor) -> None:
        self._features.setdefault(sequence, []).append(new)


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
            cuts = [min(len(run) - 1, CHUNK) if len(run) > CATCH_UP else 0 for run in unread]
            long = [b for b, cut in enumerate(cuts) if cut]
            parts = [unread[b][: cuts[b]] for b in long], [tokens[b][: cuts[b]] for b in long]
            self._settle(long, *parts, logits=False)
            unread = [run[cut:] for run, cut in zip(unread, cuts, strict=True)]
            tokens = [run[cut:] for run, cut in zip(tokens, cuts, strict=True)]
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
        return unread_slots(self.executor, self.slots, self.tokens, self.features)

    def _settle(self, who: list[int], features: list[Tensor], tokens: list[list[int]], logits: bool = True) -> Output:
        """Read slots of verified text for good."""
        slots = [self.slots[b] for b in who]
        rows = Rows.chains(slots, tokens, self.device)
        joined = self.head.join(self.head.embed(rows.token), torch.cat(features))
        out = self.executor.forward_embeds(rows, joined, self._taps, logits)
        self.executor.commit(slots, [len(run) for run in tokens])
        return out


class InsideStepper(FeatureStepper):
    """The same inside a recorded round: what is new is read from the device."""

    executor: Inside  # type: ignore[assignment]
    given: Tensor  # [B, W] tokens
    counts: Tensor  # [B]
    states: Tensor  # [B, W, d] features that go with them

    def root(self) -> Step:
        embeds = self.head.embed(self.given.flatten())
        joined = self.head.join(embeds, self.states.flatten(0, 1)).view(*self.given.shape, -1)
        out = self.executor.read(joined, self.counts, self._taps)
        self._back[:, 0] = self.head.back(out.hidden[self._taps[0]])
        return self._step(out, out.index)


def unread_slots(
    executor: Executor, slots: Seq[int], texts: Seq[list[int]], features: Seq[Tensor]
) -> tuple[list[Tensor], list[list[int]]]:
    """Features of slots that the K/V lacks, and the token that goes with each; always at least the newest."""
    missing, tokens, known = [], [], []
    for slot, text, kept in zip(slots, texts, features, strict=True):
        first = len(text) - 1 - len(kept)  # the slot of kept[0]; slot t goes with token t + 1
        have = max(first, min(executor.length(slot), len(text) - 2))
        missing.append(kept[have - first :])
        tokens.append(text[have + 1 :])
        known.append(have)
    executor.rollback(slots, known)
    return missing, tokens


def accepted_rows(round: Round) -> tuple[Tensor, list[int]]:
    """Packed rows of each sequence's pending token and accepted nodes, behind one another, and how many each has."""
    counts = [n + 1 for n in round.accepted]
    path = round.verdict.path[:, : max(counts) - 1]
    rows = torch.cat((torch.zeros_like(path[:, :1]) if path.shape[1] else path.new_zeros(len(counts), 1), path + 1), 1)
    wanted = torch.arange(rows.shape[1], device=rows.device)[None, :] < rows.new_tensor(counts)[:, None]
    return round.out.index.gather(1, rows.clamp(min=0))[wanted], counts
