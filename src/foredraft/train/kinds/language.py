"""FastDraft, Kangaroo and EESD: drafters that are language models, trained towards the target's distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...models import Decoder
from ...models.heads import FastDraft, HeadSpec, Identity, KangarooHead
from ..batch_attention import Causal
from ..objectives import cross_entropy
from ..teacher import TeacherOutputs
from .base import Pass, Settings, distribution_loss, language_guess, named_layers
from .training_stages import Stage


def positions(ids: Tensor) -> Tensor:
    """[B * T] places of packed texts [B, T]."""
    return torch.arange(ids.shape[1], device=ids.device).repeat(len(ids))


# FastDraft: pre-training on all text (or on one of its own, `--pretrain-data`), then alignment at half the rate.
PRETRAINED = (Stage(0.3, pretrains=True), Stage(1.0, lr=0.5))


@dataclass(frozen=True, slots=True)
class Fast:
    """A small decoder that begins as some of the target's layers: the first ones and the last."""

    name: str = "fastdraft"
    defaults: Settings = field(default_factory=lambda: Settings(layers=3, stages=PRETRAINED))

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return ()

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        depth = target.config.num_layers
        sources = [round(i * (depth - 1) / max(settings.layers - 1, 1)) for i in range(settings.layers)]
        extra = {"begun_as": list(named_layers(settings, "begun_as", depth - 1) or sources)}
        return HeadSpec(self.name, identity, len(outputs.words), (), settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> FastDraft:
        head = FastDraft(target, spec, words)
        head.copy_layers(target, spec.extra["begun_as"])
        return head

    def loss(self, head: FastDraft, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        return distribution_loss(head, outputs, self._passes(head, outputs), settings)

    @torch.no_grad()
    def guess(self, head: FastDraft, outputs: TeacherOutputs, length: int) -> Tensor:
        return language_guess(head, outputs, next(self._passes(head, outputs)), length)

    def _passes(self, head: FastDraft, outputs: TeacherOutputs) -> Iterator[Pass]:
        yield Pass(1, self.features(head, outputs))

    def features(self, head: FastDraft, outputs: TeacherOutputs) -> Tensor:
        embeds = outputs.embed(head.embedding, 0).flatten(0, 1)
        stream, _ = head.run(embeds, positions(outputs.ids), Causal(len(outputs.ids)))
        return head.finish(stream).view(*outputs.ids.shape, -1)


@dataclass(frozen=True, slots=True)
class Kangaroo:
    """An adapter after the target's first layers."""

    name: str = "kangaroo"
    defaults: Settings = field(default_factory=lambda: Settings(extra={"mlp": True}))

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return (settings.exit_layer,)

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        size, extra = len(outputs.words), {"mlp": bool(settings.extra.get("mlp"))}
        return HeadSpec(self.name, identity, size, (settings.exit_layer,), 1, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> KangarooHead:
        head = KangarooHead(target, spec, words)
        head.begin_as(target)
        return head

    def loss(self, head: KangarooHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        return distribution_loss(head, outputs, self._passes(head, outputs), settings)

    @torch.no_grad()
    def guess(self, head: KangarooHead, outputs: TeacherOutputs, length: int) -> Tensor:
        return language_guess(head, outputs, next(self._passes(head, outputs)), length)

    def _passes(self, head: KangarooHead, outputs: TeacherOutputs) -> Iterator[Pass]:
        state = outputs.states[head.taps[0]].flatten(0, 1).float()
        cos, sin = head.rotation(positions(outputs.ids))
        stream = head.adapter(state, cos, sin, Causal(len(outputs.ids)), head.taps[0])
        yield Pass(1, head.finish(stream).view(*outputs.ids.shape, -1))


@dataclass(frozen=True, slots=True)
class Eesd(Kangaroo):
    """An exit layer, begun as the target's last, that learns from the target's distributions and from its texts.

    The loss is KL(p || q) - log q(next token), the second part where the draft vocabulary has the token.
    """

    name: str = "eesd"
    defaults: Settings = field(default_factory=lambda: Settings(stages=PRETRAINED, extra={"mlp": True}))

    def loss(self, head: KangarooHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        one = next(self._passes(head, outputs))
        soft = distribution_loss(head, outputs, iter((one,)), settings)
        slots = outputs.slots(1)
        known = torch.full((head.embedding.shape[0],), -1, device=slots.device).scatter(
            0, outputs.words, torch.arange(len(outputs.words), device=slots.device)
        )
        label = known[outputs.ids.flatten()[slots + 1]]
        slots, label = slots[label >= 0], label[label >= 0]
        hard = cross_entropy(head.logits(one.features.flatten(0, 1)[slots]), label)
        return soft + hard.sum() / max(len(hard), 1)
