"""A draft model of another tokenizer: drafts in the tokens that both know, or in text.

By tokens: its distributions are cut to the shared tokens and renormalised, and drafts are drawn from what is left, so
that the p/q rules are exact. By text: what it writes is cut into the target's tokens; these are chosen, not drawn, so
sample-and-match verifies them. Its K/V follows the text in its own tokens; what a round has drafted is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.shapes.base import Chain, Frontier, Shape, Step, Vocabulary
from ...errors import UsageError
from ...runtime import FINAL, Executor, Output, Rows
from ...types import DraftBatch, Kind, Sequence, Verdict
from ...types.drafts import chains
from ..base import Round
from ..neural.draft_model import ModelDrafter, ModelStepper, draft_block
from ..neural.native_step import NativeStep
from .text_context import TextContext


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """Tokens that stand for the same bytes in both vocabularies."""

    own: Tensor  # [n] the drafter's id of each
    vocabulary: Vocabulary  # their ids in the target's vocabulary, and back

    @classmethod
    def of(
        cls, drafter: Mapping[int, bytes], target: Mapping[int, bytes], size: int, device: torch.device
    ) -> SharedTokens:
        """size: of the target's vocabulary. Where several tokens have the same bytes, the first of them counts."""
        known: dict[bytes, int] = {}
        for index in sorted(target):
            known.setdefault(target[index], index)
        pairs: dict[int, int] = {}  # target id -> drafter's id
        for index in sorted(drafter):
            if drafter[index] in known:
                pairs.setdefault(known[drafter[index]], index)
        if not pairs:
            raise UsageError("the two vocabularies share no token; draft by text (vocab=text)")
        ids = torch.tensor(list(pairs), dtype=torch.int64, device=device)
        index_of = torch.full((size,), -1, dtype=torch.int64, device=device)
        index_of[ids] = torch.arange(len(ids), device=device)
        own = torch.tensor(list(pairs.values()), dtype=torch.int64, device=device)
        return cls(own, Vocabulary(ids, index_of))


class TranslatedDrafter(ModelDrafter):
    """Keeps the draft model's K/V in step with the text in the drafter's own tokens."""

    def __init__(
        self, executor: Executor, shape: Shape, vocab_size: int, context: TextContext, shared: SharedTokens | None
    ) -> None:
        """shared: None = drafts are text."""
        if shared is None:
            if not isinstance(shape, Chain):
                raise UsageError("a drafter of another tokenizer writes text, a chain; for trees use vocab=tokens")
            shape = replace(shape, kind=Kind.CHOSEN)
        super().__init__(executor, shape, vocab_size, "draft-model", None if shared is None else shared.vocabulary)
        self.draft_words = 0 if shared is None else len(shared.own)
        self.context, self.shared = context, shared
        self.max_length = 1 << 30  # of a longer text it sees the end
        self._held: dict[int, list[int]] = {}  # sequence id -> its own tokens whose K/V are kept

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        self._held |= {s.id: [] for s in sequences}

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._held.pop(sequence.id, None)
            self.context.forget(sequence)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        slots, texts = [self._slots[s.id] for s in sequences], [self.context.ids(s) for s in sequences]
        for sequence, slot, text in zip(sequences, slots, texts, strict=True):
            held = zip(self._held[sequence.id], text, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], held))
            self.executor.rollback([slot], [min(same, len(text) - 1, self.executor.length(slot))])
            self._held[sequence.id] = text
        block = draft_block(sequences, self.shape, self.executor.vocab_size, self.executor.device)
        stepper = TranslatedStepper(self.executor, slots, sequences, block, self.shape)
        stepper.tokens, stepper.shared = texts, self.shared
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.executor.device))
        self.executor.rollback(slots, [self.executor.length(slot) for slot in slots])
        return drafts if self.shared is not None else self._in_target_tokens(sequences, texts, drafts)

    def _in_target_tokens(self, sequences: Seq[Sequence], texts: Seq[list[int]], drafts: DraftBatch) -> DraftBatch:
        lengths, tokens = drafts.lengths(), drafts.token.tolist()
        found = []
        for b, sequence in enumerate(sequences):
            target = self.context.target_tokens(sequence, texts[b], tokens[b][: lengths[b]])
            known = list(takewhile(lambda token: token < self.vocab_size, target))
            found.append(known[: max(sequence.budget.chain, 0)])
        return chains(found, drafts.token.device)

    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        """Nothing: the next round begins with the text in the drafter's own tokens."""

    def observe(self, round: Round) -> None:
        """Nothing: what was drafted is read again in the drafter's own tokens."""


class TranslatedStepper(ModelStepper):
    """One round; nodes carry the target's ids where drafts are tokens, else the drafter's own."""

    shared: SharedTokens | None = None

    def _place(self, frontier: Frontier) -> Rows:
        if self.shared is not None:
            words = self.shared.vocabulary.index[frontier.token]
            frontier = replace(frontier, token=self.shared.own[words])
        return super()._place(frontier)

    def _step(self, out: Output, rows: Tensor) -> Step:
        kind = NativeStep if self._native else Step
        if self.shared is None:
            return kind(out.logits, rows, self.block, out.hidden[FINAL])
        return kind(out.logits[:, self.shared.own], rows, self.block, out.hidden[FINAL], self.shared.vocabulary)
