"""Drafts with a P-EAGLE head: one pass says all levels.

After the slots of verified text stand placeholders: the embedding of a token that means nothing, with a state that was
learnt. The slot of the pending token says level 1, placeholder i says level i + 1, none of them having seen a draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import cast

import torch
from torch import Tensor

from ....core.distributions.sampling import ParamBlock
from ....core.shapes.base import Frontier, Step
from ....models.heads import FeatureHead, ParallelEagle3
from ....runtime import FINAL, Output, Rows
from ....types import DraftBatch, Sequence
from ..eagle import EagleDrafter, EagleStepper, PairedStepper


class ParallelDrafter(EagleDrafter):
    """Follows the target's states as EAGLE does; a round is one pass, however deep its drafts are."""

    @staticmethod
    def ahead(head: FeatureHead) -> int:
        return cast(ParallelEagle3, head).length - 1

    def _captured(self, sequences: Seq[Sequence]) -> DraftBatch | None:
        return None  # one pass leaves little to capture

    def new_round(self, slots: list[int], sequences: Seq[Sequence], block: ParamBlock) -> EagleStepper:
        kind = PairedParallelStepper if self.paired else ParallelStepper
        return kind(self.head, self.executor, slots, sequences, block, self.shape)


class ParallelStepper(EagleStepper):
    """One round: the pass, then its rows level by level."""

    head: ParallelEagle3
    _levels: Tensor  # [B, L] packed row that says each level
    _out: Output

    def root(self) -> Step:
        unread, tokens = self.catch_up()
        ahead = self.head.length - 1
        blank = self.head.placeholder().expand(ahead, -1)
        rows = Rows.chains(self.slots, [[*run, *[self.head.mask_token] * ahead] for run in tokens], self.device)
        features = torch.cat([part for run in unread for part in (run, blank.to(run.dtype))])
        self._out = self._read(rows, features)
        self.executor.commit(self.slots, [len(run) for run in tokens])  # placeholders are forgotten
        last = torch.tensor([[len(run) - 1] for run in tokens], device=self.device)
        self._levels = self._out.index.gather(1, last + torch.arange(ahead + 1, device=self.device))
        return self._level(torch.zeros_like(last))

    def expand(self, frontier: Frontier) -> Step:
        return self._level(frontier.depth)

    def _level(self, depth: Tensor) -> Step:
        """What follows nodes of these depths, [B, w]: the same for all nodes of a depth."""
        out, rows = self._out, self._levels.gather(1, depth.clamp(max=self.head.length - 1)).flatten()
        place = torch.arange(len(rows), device=self.device).view_as(depth)
        return self._step(Output(out.logits[rows], {FINAL: out.hidden[FINAL][rows]}, place), place)


class PairedParallelStepper(ParallelStepper, PairedStepper):
    """The same on an executor that looks tokens and features up by itself."""
