"""A fan rooted in the target's own top tokens, as published (Lu et al. 2024): for the lossy rule that goes with it.

The rule `best-branch:bonus=false` ends a round with the last accepted token, whose row of the target's logits is known;
its top tokens begin the branches of the next round, without a draft call. With an exact rule there would be nothing to
choose: the token after the accepted ones is drawn at once, and a fan of one root is left.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.shapes.fan import Fan
from ...types import DraftBatch, Sequence
from ..base import Round, WrappedDrafter
from ..neural.draft_model import ModelDrafter


class TargetFanDrafter(WrappedDrafter):
    """Around a draft model in the shape of a fan, whose own tokens begin where the target's row is not known."""

    inner: ModelDrafter

    def __init__(self, inner: ModelDrafter, fan: Fan) -> None:
        super().__init__(inner)
        self.fan = fan
        self._roots: dict[int, Tensor] = {}  # sequence id -> [width] the target's top tokens after the pending one

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        unknown = torch.full((self.fan.width,), -1, dtype=torch.int64, device=self.inner.executor.device)
        roots = torch.stack([self._roots.get(s.id, unknown) for s in sequences])
        self.inner.shape = replace(self.fan, roots=roots)
        return super().propose(sequences, rng)

    def observe(self, round: Round) -> None:
        for b, sequence in enumerate(round.sequences):
            node = self._last(round, b)
            self._roots.pop(sequence.id, None)
            if node is not None:
                row = round.out.logits[round.out.index[b, node + 1]]
                self._roots[sequence.id] = row.topk(self.fan.width).indices.to(self.inner.executor.device)
        super().observe(round)

    def _last(self, round: Round, b: int) -> int | None:
        """The node whose token ended the round; None = it was a token of the target's own."""
        verdict, tree = round.verdict.row(b), round.drafts.tree(b)
        above = verdict.path[-1] if verdict.path else -1
        return next((node for node in tree.children(above) if tree.token[node] == verdict.token), None)

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._roots.pop(sequence.id, None)
