"""The token model under classifier-free guidance as a teacher: what it draws, and the states that a head learns from.

The LM head is linear, so guided logits u + s (c - u) are the head's answer to guided features u + s (c - u), with c
and u the features with and without the class. A head that regresses guided features needs no second stream of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models import Decoder
from ...models.decoder import FINAL
from ..teacher import TeacherOutputs
from .token_trainer import features_of

SCALES = (1.0, 3.0)  # of guidance: heads learn from all in between, so that one serves any


class GuidedTeacher:
    """The frozen token model; texts are [B, 1 + n] ids, the class first."""

    def __init__(self, decoder: Decoder, codes: int, none: int, length: int) -> None:
        self.decoder, self.none, self.length = decoder, none, length
        self.words = torch.arange(codes, device=decoder.device)
        self.rows = decoder.head_weight.detach()[:codes].clone()

    @torch.no_grad()
    def features(self, ids: Tensor, scale: Tensor) -> Tensor:
        """[B, T, d] guided features at scales [B]."""
        unconditional = torch.cat((torch.full_like(ids[:, :1], self.none), ids[:, 1:]), dim=1)
        known, unknown = (features_of(self.decoder, text) for text in (ids, unconditional))
        return torch.lerp(unknown, known, scale[:, None, None])

    @torch.no_grad()
    def draw(self, first: Tensor, scale: Tensor) -> Tensor:
        """[B, 1 + n]: images at temperature 1 after class tokens [B]."""
        ids = first[:, None]
        for _ in range(self.length):
            logits = self.features(ids, scale)[:, -1] @ self.rows.T
            ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1)), dim=1)
        return ids

    @torch.no_grad()
    def outputs(self, ids: Tensor, scale: Tensor) -> TeacherOutputs:
        features = self.features(ids, scale)
        written = torch.ones_like(ids, dtype=torch.bool)
        written[:, 0] = False
        best = (features.flatten(0, 1) @ self.rows.T).argmax(-1).view(ids.shape)
        return TeacherOutputs(ids, written, {FINAL: features}, self.words, self.rows, best)
