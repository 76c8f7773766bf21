"""EAGLE-1, EAGLE-3, GRIFFIN and Dovetail: layers over target states, unrolled on its own outputs while training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...models import Decoder
from ...models.decoder import FINAL
from ...models.heads import DovetailHead, Eagle3Head, EagleHead, FeatureHead, GriffinHead, HeadSpec, Identity
from ..batch_attention import Unrolled
from ..objectives import smooth_l1
from ..teacher import TeacherOutputs, pull
from .base import Pass, Settings, distribution_loss, stepwise_guess, typical_size

PLAUSIBLE = 3  # GRIFFIN: tokens that a drafter might have drafted itself; of 1, 3, 5 and 10 the paper found 3 best


def unroll(
    head: FeatureHead, outputs: TeacherOutputs, steps: int, detach: bool = False, noise: float = 0.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """(features for the target's head, features handed back), [B, T, d] each, of every drafted token.

    Slot t starts with the target's state at t and token t + 1; step j reads token t + 1 + j and its own last answer.
    The first step reads whole texts, the others only slots that somebody drafts from; what they leave out is zero.
    """
    batch, length = outputs.ids.shape
    slots = torch.arange(length, device=outputs.ids.device).expand(batch, -1)
    attend = Unrolled(batch)
    feature = head.feature([outputs.states[tap].float() for tap in head.taps])
    if noise:
        feature = feature + (torch.rand_like(feature) * 2 - 1) * noise
    for j in range(steps):
        if j == 1:
            slots = attend.slots = outputs.window()
            feature = take(feature, slots)
        position = (slots + j).clamp(max=head.config.max_position - 1).flatten()
        embeds = take(outputs.embed(head.embedding, 1 + j), slots)
        stream, _ = head.run(head.join(embeds, feature).flatten(0, 1), position, attend)
        feature = head.back(stream).view(*slots.shape, -1)
        shaped = head.finish(stream).view(*slots.shape, -1)
        yield put(shaped, slots, length), put(feature, slots, length)
        feature = feature.detach() if detach else feature
        attend.advance()


def take(values: Tensor, slots: Tensor) -> Tensor:
    """values [B, T, d] at slots [B, W]."""
    return values.gather(1, slots[:, :, None].expand(-1, -1, values.shape[2]))


def put(values: Tensor, slots: Tensor, length: int) -> Tensor:
    """The other way: [B, W, d] -> [B, length, d], zero elsewhere."""
    if slots.shape[1] == length:
        return values
    blank = values.new_zeros((len(values), length, values.shape[2]))
    return blank.scatter(1, slots[:, :, None].expand(-1, -1, values.shape[2]), values)


def narrowed(settings: Settings) -> dict[str, Any]:
    """What a head's description says of its width, if it is not the target's."""
    return {} if settings.ff is None else {"ff": settings.ff}


@dataclass(frozen=True, slots=True)
class Eagle3:
    """Tokens only: no feature is regressed."""

    name: str = "eagle3"
    defaults: Settings = field(default_factory=lambda: Settings(length=5))

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        depth = target.config.num_layers
        return tuple(settings.extra.get("taps", (2, depth // 2, depth - 3)))

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        taps = self.taps(target, settings)
        extra: dict[str, object] = {"scales": [typical_size(outputs, tap) for tap in taps]} | narrowed(settings)
        return HeadSpec(self.name, identity, len(outputs.words), taps, settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> Eagle3Head:
        head = Eagle3Head(target, spec, words)
        head.begin_as(target)
        return head

    def loss(self, head: Eagle3Head, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        return distribution_loss(head, outputs, self._passes(head, outputs, settings.length), settings)

    @torch.no_grad()
    def guess(self, head: Eagle3Head, outputs: TeacherOutputs, length: int) -> Tensor:
        return stepwise_guess(head, outputs, self._passes(head, outputs, length))

    def _passes(self, head: Eagle3Head, outputs: TeacherOutputs, steps: int) -> Iterator[Pass]:
        for j, (features, _) in enumerate(unroll(head, outputs, steps)):
            yield Pass(2 + j, features)


@dataclass(frozen=True, slots=True)
class Eagle:
    """The next feature by regression, and the distribution that the target's head reads from it.

    The paper trains one step with noise on the features; `length` above 1 unrolls further, as HASS does.
    """

    name: str = "eagle"
    defaults: Settings = field(
        default_factory=lambda: Settings(length=4, extra={"distribution_weight": 5.0, "noise": 0.1})
    )
    head: type[EagleHead] = EagleHead

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return (FINAL,)

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        size, extra = len(outputs.words), {"scale": typical_size(outputs, FINAL)} | narrowed(settings)
        return HeadSpec(self.name, identity, size, (FINAL,), settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> EagleHead:
        return self.head(target, spec, words)

    def loss(self, head: EagleHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        noise = settings.extra.get("noise", 0.0)
        passes = self._passes(head, outputs, settings.length, noise)
        return distribution_loss(head, outputs, passes, settings)

    @torch.no_grad()
    def guess(self, head: EagleHead, outputs: TeacherOutputs, length: int) -> Tensor:
        return stepwise_guess(head, outputs, (Pass(2, f) for f, _ in unroll(head, outputs, length)))

    def _passes(self, head: EagleHead, outputs: TeacherOutputs, steps: int, noise: float) -> Iterator[Pass]:
        for j, (features, back) in enumerate(unroll(head, outputs, steps, noise=noise)):
            yield Pass(2 + j, features, regression(head, outputs, back, j))


DOVETAIL = Eagle(
    "dovetail",
    Settings(length=4, layers=2, extra={"distribution_weight": 5.0, "noise": 0.1}),
    DovetailHead,
)


def regression(
    head: EagleHead, outputs: TeacherOutputs, back: Tensor, step: int, where: Tensor | None = None
) -> Tensor:
    """Smooth L1 between what a step hands back and the target's true feature, where the slot counts."""
    slots = outputs.slots(2 + step)
    if where is not None:
        slots = slots[where.flatten()[slots]]
    truth = outputs.states[FINAL].flatten(0, 1)[slots + 1 + step] / head.scale
    return smooth_l1(back.flatten(0, 1)[slots], truth).sum() / max(len(slots), 1)


@dataclass(frozen=True, slots=True)
class Griffin(Eagle):
    """EAGLE trained only where the tokens before were ones that the drafter might have drafted itself.

    A slot stays in step j's loss if each of its earlier tokens was among the drafter's most likely `PLAUSIBLE`.
    """

    name: str = "griffin"
    defaults: Settings = field(
        default_factory=lambda: Settings(length=3, extra={"distribution_weight": 1.0, "noise": 0.1})
    )
    head: type[EagleHead] = GriffinHead

    def _passes(self, head: EagleHead, outputs: TeacherOutputs, steps: int, noise: float) -> Iterator[Pass]:
        aligned = torch.ones_like(outputs.written)
        for j, (features, back) in enumerate(unroll(head, outputs, steps, detach=True, noise=noise)):
            yield Pass(2 + j, features, regression(head, outputs, back, j, aligned), aligned)
            aligned = aligned & self._predictable(head, outputs, features, j)

    @torch.no_grad()
    def _predictable(self, head: EagleHead, outputs: TeacherOutputs, features: Tensor, step: int) -> Tensor:
        """[B, T] bool: token t + 2 + step is among the most likely few that this step gives."""
        truth = pull(outputs.ids, 2 + step, -1)
        inside = torch.zeros_like(outputs.written)
        where = outputs.counts(2 + step)
        top = head.logits(features[where].detach()).topk(PLAUSIBLE, dim=-1).indices
        inside[where] = (outputs.words[top] == truth[where][:, None]).any(dim=1)
        return inside
