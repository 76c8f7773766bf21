"""A drafter that may fail without harm: what it raises is reported, and its sequences go on by plain decoding.

Drafting nothing is always allowed. A failure could bend only the distribution of the round in which it happens, if a
drafter raised *because of a token that it had drawn*; later rounds of a lost sequence draft nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...errors import KVFullError
from ...runtime import Output
from ...types import DraftBatch, Sequence, Verdict
from ...types.drafts import empty_drafts
from ..base import Drafter, Round, WrappedDrafter

OnLoss = Callable[[Sequence, Exception], None]


class GuardedDrafter(WrappedDrafter):
    """`on_loss` is called once for every lost sequence and should take it away from the drafter: until then, a batch
    that holds it gets no drafts.
    """

    def __init__(self, drafter: Drafter, on_loss: OnLoss) -> None:
        super().__init__(drafter)
        self._on_loss = on_loss
        self._lost: set[int] = set()

    def declines(self, sequence: Sequence, running: int) -> bool:
        try:
            return self.inner.declines(sequence, running)
        except Exception:
            return False  # whatever is wrong will show again, where it can be laid to somebody

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._try([sequence], self.inner.begin, [sequence])

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, place, states in zip(sequences, begin, hidden, strict=True):
            if sequence.id not in self._lost:
                self._try([sequence], self.inner.observe_prefill, [sequence], [place], [states])

    def rests(self, sequences: Seq[Sequence]) -> bool:
        try:
            return self.inner.rests(sequences)
        except Exception as error:
            self._lose(sequences, error)
            return True

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        nothing = empty_drafts(len(sequences))
        if any(sequence.id in self._lost for sequence in sequences):
            return nothing
        try:
            return self.inner.propose(sequences, rng)
        except KVFullError:  # no fault of theirs: they may draft again when a text has ended
            return nothing
        except Exception as error:
            self._find_culprits(sequences, rng, error)
            return nothing

    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        self._try(sequences, self.inner.prefetch, sequences, out, verdict)

    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        self._try(sequences, self.inner.draft_ahead, sequences, verdict)

    def observe(self, round: Round) -> None:
        self._try(round.sequences, self.inner.observe, round)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._try([sequence], self.inner.end, [sequence])
            self._lost.discard(sequence.id)

    def _find_culprits(self, sequences: Seq[Sequence], rng: Rng, error: Exception) -> None:
        """Ask again one by one: sequences that fail alone are lost; if none does, the whole batch is."""
        known = len(self._lost)
        for b, sequence in enumerate(sequences):
            if len(sequences) > 1:
                self._try([sequence], self.inner.propose, [sequence], rng.choose(torch.tensor([b])))
        if len(self._lost) == known:
            self._lose(sequences, error)

    def _try(self, sequences: Seq[Sequence], verb: Callable[..., object], *args: object) -> None:
        try:
            verb(*args)
        except Exception as error:
            self._lose(sequences, error)

    def _lose(self, sequences: Seq[Sequence], error: Exception) -> None:
        for sequence in sequences:
            if sequence.id not in self._lost:
                self._lost.add(sequence.id)
                self._on_loss(sequence, error)
