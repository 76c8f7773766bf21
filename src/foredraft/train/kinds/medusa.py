"""Medusa and the MLP speculator: a few small products on the target's last feature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...models import Decoder
from ...models.decoder import FINAL
from ...models.heads import HeadSpec, Identity, MedusaHead, RecurrentHead, SpeculatorHead
from ..teacher import TeacherOutputs
from .base import Pass, Settings, distribution_loss, named_layers, stepwise_guess, typical_size
from .training_stages import Stage


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A head that takes one step per drafted token."""

    name: str
    head: type[RecurrentHead]
    defaults: Settings = field(default_factory=Settings)

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        """The paper's last feature, and streams from inside the target: on a small target all together predict more."""
        depth = target.config.num_layers
        usual = (*sorted({depth // 4, depth // 2, 3 * depth // 4}), FINAL)
        return named_layers(settings, "taps", depth) or usual

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        taps = self.taps(target, settings)
        extra: dict[str, object] = {"scales": [typical_size(outputs, tap) for tap in taps]}
        extra |= {name: value for name, value in settings.extra.items() if name == "width"}
        return HeadSpec(self.name, identity, len(outputs.words), taps, settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> RecurrentHead:
        return self.head(target, spec, words)

    def loss(self, head: RecurrentHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        return distribution_loss(head, outputs, self._passes(head, outputs, settings.length), settings)

    @torch.no_grad()
    def guess(self, head: RecurrentHead, outputs: TeacherOutputs, length: int) -> Tensor:
        return stepwise_guess(head, outputs, self._passes(head, outputs, min(length, head.length)))

    def _passes(self, head: RecurrentHead, outputs: TeacherOutputs, steps: int) -> Iterator[Pass]:
        state = head.begin(head.feature([outputs.states[tap].float() for tap in head.taps]))
        for i in range(steps):
            state, feature = head.step(state, outputs.embed(head.embedding, 1 + i), i)
            yield Pass(2 + i, feature)


MEDUSA = Recurrent("medusa", MedusaHead, Settings(length=3))
# All text first; then what the target wrote, begun again at a tenth of the rate, as published.
TWO_STAGES = (Stage(0.7, pretrains=True), Stage(1.0, lr=0.1))
SPECULATOR = Recurrent("mlp-speculator", SpeculatorHead, Settings(length=4, stages=TWO_STAGES, extra={"width": 768}))
