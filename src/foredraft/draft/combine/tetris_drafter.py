"""TETRIS (Wu et al. 2025): every request of a batch drafts a little more than will be verified, and the best is kept.

A batch of B requests verifies `base` * B drafted tokens, or `capacity`; each drafts `extra` tokens more than its share.
Chains are cut where their tokens are least likely to be accepted (`core.trees.select`). At temperature 0 the estimate
is the product of the drafter's top probabilities; at other temperatures it is the score that does not look at the token
that it drops (shifted, exact), or the published one, which does (biased).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.trees.editing import cut
from ...core.trees.select import best_lengths, masked
from ...core.trees.tetris import Score, distribution_scores
from ...errors import UsageError
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter, WrappedDrafter


class TetrisDrafter(WrappedDrafter):
    """Around a drafter of drawn chains with values (`Chain.values`), `base` + `extra` tokens long."""

    def __init__(self, inner: Drafter, base: int, capacity: int = 0, score: Score = Score.SHIFTED) -> None:
        if inner.topology is not Topology.CHAIN or Kind.CHOSEN in inner.kinds:
            raise UsageError("TETRIS cuts drawn chains; use shape 'chain'")
        super().__init__(inner)
        self.base, self.capacity, self.score = base, capacity, score
        self.shares = self.cost_aware = True  # it shares out the pass itself, so the budget planner leaves it alone

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        drafts = self.inner.propose(sequences, rng)
        room = self.capacity or self.base * len(sequences)
        if len(sequences) == 1:  # nobody to share with: the extra tokens are worth no more than they seemed before
            return cut(drafts, [min(self.base, room)])
        if sum(drafts.lengths()) <= room:
            return drafts
        lengths = best_lengths(masked(self._scores(sequences, drafts), drafts.length), room)
        return cut(drafts, lengths.tolist())

    def _scores(self, sequences: Seq[Sequence], drafts: DraftBatch) -> Tensor:
        """[B, N] logarithms that fall along each chain."""
        greedy = torch.tensor([[s.params.temperature == 0] for s in sequences], device=drafts.token.device)
        assert drafts.value is not None, "chains come with values"
        value = drafts.value.clamp(min=torch.finfo(torch.float32).tiny).log()
        return value if bool(greedy.all()) else torch.where(greedy, value, distribution_scores(drafts, self.score))
