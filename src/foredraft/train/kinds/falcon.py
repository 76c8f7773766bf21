"""Falcon: coupled sequential glancing distillation of a head that says k features at once.

A first pass shows where the head is wrong. In some of those blocks, fewer as training goes on, features and tokens of
the block's first slots are replaced by those k places on, both together, so that the rest of the block learns from what
it will have to agree with; a second pass over these inputs has the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models import Decoder
from ...models.decoder import FINAL
from ...models.heads import EagleHead, FalconHead, HeadSpec, Identity
from ..batch_attention import Blocked
from ..teacher import TeacherOutputs, pull
from .base import Pass, Settings, best_words, distribution_loss
from .eagle import Eagle, regression
from .language import positions

GLANCE = 0.4  # share of the wrong places that are shown at the beginning


@dataclass(frozen=True, slots=True)
class Falcon(Eagle):
    """`length` is the size k of a block."""

    name: str = "falcon"
    defaults: Settings = field(
        default_factory=lambda: Settings(length=2, extra={"distribution_weight": 5.0, "noise": 0.1})
    )
    head: type[EagleHead] = FalconHead

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        spec = super(Falcon, self).describe(target, identity, settings, outputs)
        return HeadSpec(
            spec.kind, identity, spec.draft_vocab_size, spec.taps, 1, settings.length, spec.extra | {"rnn_layers": 2}
        )

    def rival(self, target: Decoder) -> nn.Module | None:
        return None

    def loss_at(
        self, head: FalconHead, rival: None, outputs: TeacherOutputs, settings: Settings, progress: float
    ) -> Tensor:
        size = head.size
        offset = int(torch.randint(size, (1,)))
        token, feature = outputs.shifted(outputs.ids, 1), head.feature([outputs.states[FINAL].float()])
        feature = feature + (torch.rand_like(feature) * 2 - 1) * settings.extra["noise"]
        shown = glances(head, outputs, token, feature, offset, progress)
        token = torch.where(shown, outputs.shifted(token, size), token)
        feature = torch.where(shown[:, :, None], outputs.shifted(feature, size), feature)
        shaped, back = block_pass(head, token, feature, offset)
        one = Pass(size + 1, shaped, regression(head, outputs, back, size - 1))
        return distribution_loss(head, outputs, iter((one,)), settings)

    @torch.no_grad()
    def guess(self, head: EagleHead, outputs: TeacherOutputs, length: int) -> Tensor:
        """Of one call: [B, T, k]. Slot t ends a block under one of the k ways to cut a text into blocks."""
        assert isinstance(head, FalconHead)
        size, places = head.size, outputs.ids.shape[1]
        token, feature = outputs.shifted(outputs.ids, 1), head.feature([outputs.states[FINAL].float()])
        found = torch.full((*outputs.ids.shape, size), -1, device=outputs.ids.device)
        for offset in range(min(size, places - size + 1)):  # others leave room for no block
            words = best_words(head, outputs, block_pass(head, token, feature, offset)[0])
            ends = torch.arange(offset + size - 1, places, size, device=words.device)
            for j in range(size):
                found[:, ends, j] = words[:, ends - size + 1 + j]
        return found


def block_pass(head: FalconHead, token: Tensor, feature: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Features for the target's head and features handed back, [B, T, d] each; blocks begin at offset, offset + k .."""
    stream, _ = head.encode(F.embedding(token, head.embedding), feature)
    attend = Blocked(len(token), head.size, offset)
    out, _ = head.run(stream.flatten(0, 1).to(feature.dtype), positions(token), attend)
    return head.finish(out).view(feature.shape), head.back(out).view(feature.shape)


@torch.no_grad()
def glances(
    head: FalconHead, outputs: TeacherOutputs, token: Tensor, feature: Tensor, offset: int, progress: float
) -> Tensor:
    """[B, T] bool: slots whose inputs are replaced by those k places on."""
    size, where = head.size, outputs.counts(head.size + 1)
    shaped, _ = block_pass(head, token, feature, offset)
    logits = head.logits(shaped[where])
    wrong = (logits.argmax(-1) != pull(outputs.best, size, -1)[where]).sum()
    blocks = where.sum().clamp(min=1) / size
    chance = GLANCE * (1 - progress) * wrong / blocks
    place = torch.arange(token.shape[1], device=token.device)
    inside = (place - offset) % size  # the place in its block
    start = (place - inside).clamp(min=0)
    drawn = torch.rand(token.shape, device=token.device) < chance
    run = torch.randint(1, max(size, 2), token.shape, device=token.device)  # of the block's first slots
    shown: Tensor = drawn[:, start] & (inside < run[:, start]) & where
    return shown
