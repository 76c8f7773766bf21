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
from ..objectives import smooth_l1, top_cross_entropy
from ..teacher import TeacherOutputs, pull
from .base import Pass, Settings, distribution_loss, named_layers, stepwise_guess, typical_size
from .training_stages import Stage

# GRIFFIN trains one pass, then two from there, then three, each at a lower rate.
GROWING = (Stage(0.5, length=1), Stage(0.75, lr=0.6, length=2), Stage(1.0, lr=0.4, length=3))
ALIGNMENTS = ("paper", "code")  # GRIFFIN: whose way to pick slots whose tokens were plausible
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
        return named_layers(settings, "taps", depth) or (2, depth // 2, depth - 3)

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
        default_factory=lambda: Settings(
            length=3, stages=GROWING, extra={"distribution_weight": 1.0, "noise": 0.1, "top": 10, "top_weight": 0.5}
        )
    )
    head: type[EagleHead] = GriffinHead

    def loss(self, head: EagleHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        extra = settings.extra
        passes = self._aligned(head, outputs, settings, extra.get("alignment", "paper") == "code")
        return distribution_loss(head, outputs, passes, settings)

    def _aligned(self, head: EagleHead, outputs: TeacherOutputs, settings: Settings, own_too: bool) -> Iterator[Pass]:
        """The passes with the slots that each keeps. The paper asks of a slot that the tokens before its own were
        plausible; the released code asks it of its own token, as the pass before saw it from one slot later."""
        aligned = torch.ones_like(outputs.written)
        noise = settings.extra.get("noise", 0.0)
        for j, (features, back) in enumerate(unroll(head, outputs, settings.length, detach=True, noise=noise)):
            penalty = regression(head, outputs, back, j, aligned) + self._top(
                head, outputs, features, j, aligned, settings
            )
            yield Pass(2 + j, features, penalty, aligned)
            plausible = self._predictable(head, outputs, features, j)
            aligned = aligned & (pull(plausible, 1, False) if own_too else plausible)

    def _top(
        self, head: EagleHead, outputs: TeacherOutputs, features: Tensor, step: int, where: Tensor, settings: Settings
    ) -> Tensor:
        """The cross-entropy on the target's few most likely tokens, weighted."""
        slots = outputs.slots(2 + step)
        slots = slots[where.flatten()[slots]]
        weight = settings.extra.get("top_weight", 0.0)
        if not weight or not len(slots):
            return features.new_zeros(())
        logits = head.logits(features.flatten(0, 1)[slots])
        part = top_cross_entropy(logits, outputs.logits(slots, 2 + step), int(settings.extra.get("top", 10)))
        return weight * part.mean()

    @torch.no_grad()
    def _predictable(self, head: EagleHead, outputs: TeacherOutputs, features: Tensor, step: int) -> Tensor:
        """[B, T] bool: token t + 2 + step is among the most likely few that this step gives."""
        truth = pull(outputs.ids, 2 + step, -1)
        inside = torch.zeros_like(outputs.written)
        where = outputs.counts(2 + step)
        top = head.logits(features[where].detach()).topk(PLAUSIBLE, dim=-1).indices
        inside[where] = (outputs.words[top] == truth[where][:, None]).any(dim=1)
        return inside
