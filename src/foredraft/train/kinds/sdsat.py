"""SDSAT: placeholders after some tokens of a text learn the target's distributions further on. The target is frozen.

The m-th placeholder after token a stands at place a + m, sees the text up to a and the placeholders before it, and
learns what the target says of token a + 1 + m.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...models import Decoder
from ...models.heads import HeadSpec, Identity, SdsatHead
from ..batch_attention import Anchored, Keeping
from ..objectives import OBJECTIVES
from ..teacher import TeacherOutputs
from .base import Settings
from .language import positions

ANCHORS = 64  # tokens of a text that are followed by placeholders in a step


@dataclass(frozen=True, slots=True)
class Sdsat:
    """`length` is the number of placeholders."""

    name: str = "sdsat"
    defaults: Settings = field(default_factory=lambda: Settings(length=3, extra={"rank": 16}))

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return ()

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        extra = {"rank": settings.extra["rank"]}
        return HeadSpec(self.name, identity, target.config.vocab_size, (), 1, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> SdsatHead:
        return SdsatHead(target, spec, words)

    def loss(self, head: SdsatHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        """Mean over the placeholders of the distance to the target's distribution, nearer ones weighing more."""
        batch, length = outputs.ids.shape
        window = outputs.window()
        drawn = torch.rand((batch, window.shape[1]), device=window.device).argsort(dim=1)[:, :ANCHORS]
        anchors = window.gather(1, drawn)
        features = placeholder_features(head, outputs.ids, anchors)  # [B, G, k, d]
        total, weights = torch.zeros((), device=window.device), 0.0
        row = torch.arange(batch, device=window.device)[:, None] * length
        for m in range(1, head.size + 1):
            counts = outputs.counts(1 + m).gather(1, anchors)
            student = features[:, :, m - 1][counts] @ outputs.rows.T.to(features.dtype)
            each = OBJECTIVES[settings.objective](student, outputs.logits((row + anchors)[counts], 1 + m))
            total = total + settings.decay ** (m - 1) * each.sum() / max(len(each), 1)
            weights += settings.decay ** (m - 1)
        return total / weights

    @torch.no_grad()
    def guess(self, head: SdsatHead, outputs: TeacherOutputs, length: int) -> Tensor:
        """[B, T, k + 1]: after slot t token t + 1 is pending; its own row is the target's, then the placeholders'."""
        batch, places = outputs.ids.shape
        found = torch.full((batch, places, head.length), -1, device=outputs.ids.device)
        own = torch.where(outputs.best >= 0, outputs.words[outputs.best.clamp(min=0)], -1)
        found[:, :-1, 0] = own[:, 1:]
        window = outputs.window() + 1  # the pending tokens
        window = window[:, (window < places).all(dim=0)]
        for part in torch.split(window, 64, dim=1):
            features = placeholder_features(head, outputs.ids, part)
            best = (features @ outputs.rows.T.to(features.dtype)).argmax(-1)
            who = torch.arange(batch, device=part.device)[:, None]
            found[who, part - 1, 1:] = outputs.words[best]
        return found


def placeholder_features(head: SdsatHead, ids: Tensor, anchors: Tensor) -> Tensor:
    """[B, G, k, d] features of the placeholders after tokens at places `anchors` [B, G] of texts [B, T]."""
    target, (batch, groups), size = head.target, anchors.shape, head.size
    keeping = Keeping(batch)
    with torch.no_grad():
        target.run(target.embed(ids.reshape(-1)), positions(ids), keeping)
    attend = Anchored(keeping.seen, anchors, size)
    stream = head.placeholders.expand(batch, groups, -1, -1).flatten(0, 2).to(target.dtype)
    place = (anchors[:, :, None] + 1 + torch.arange(size, device=ids.device)).flatten()
    every = torch.ones(len(place), dtype=torch.bool, device=ids.device)
    features = head.run(stream, place.clamp(max=target.config.max_position - 1), attend, every)
    return features.view(batch, groups, size, -1)
