"""A drafter whose drafts are as long as a length rule says: the rule is asked before a round and told what came of it.

The rule sets each sequence's budget before anything is drawn, so nothing drawn is dropped for what it is (invariant 5).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from ...control.lengths.base import LengthRule
from ...core.rng.keyed import Rng
from ...types import Budget, DraftBatch, Sequence, Topology
from ...types.drafts import empty_drafts
from ..base import Drafter, Round, WrappedDrafter


class PacedDrafter(WrappedDrafter):
    """Passes everything on to a drafter. A rule that is a stop rule too goes into the drafter's chain as well."""

    def __init__(self, inner: Drafter, rule: LengthRule) -> None:
        super().__init__(inner)
        self.rule = rule

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        before = [sequence.budget for sequence in sequences]
        paced = [self._paced(sequence) for sequence in sequences]
        if not any(budget.chain for budget in paced):  # nobody drafts, so the drafter need not wake up
            return empty_drafts(len(sequences))
        _give(sequences, paced)
        try:
            return self.inner.propose(sequences, rng)
        finally:
            _give(sequences, before)

    def observe(self, round: Round) -> None:
        self.inner.observe(round)
        for sequence, drafted, accepted in zip(round.sequences, depths_of(round.drafts), round.accepted, strict=True):
            self.rule.observe(sequence.id, drafted, accepted)

    def end(self, sequences: Seq[Sequence]) -> None:
        self.inner.end(sequences)
        for sequence in sequences:
            self.rule.end(sequence.id)

    def _paced(self, sequence: Sequence) -> Budget:
        limit = sequence.budget.chain
        length = self.rule.longest(sequence.id, limit) if limit else 0
        return sequence.budget._replace(depth=max(0, min(length, limit)))


def _give(sequences: Seq[Sequence], budgets: Seq[Budget]) -> None:
    for sequence, budget in zip(sequences, budgets, strict=True):
        sequence.budget = budget


def depths_of(drafts: DraftBatch) -> Seq[int]:
    """How far each sequence was drafted along its longest path."""
    if drafts.topology is Topology.CHAIN or not drafts.width:
        return drafts.lengths()
    depths: list[int] = torch.where(drafts.used(), drafts.depth, 0).amax(dim=1).tolist()
    return depths
