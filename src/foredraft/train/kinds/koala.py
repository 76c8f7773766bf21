"""KOALA: heads of several layers, trained against a discriminator that tells their guesses from the target's.

    head           L = supervised + adversarial_weight * -log D(guess | state)
    discriminator  L = -0.9 log D(target | state) - 0.1 log(1 - D(target | state)) - log(1 - D(guess | state))

The head learns alone for the first 60% of the steps, the discriminator alone for the next 5%, then both; it rests while
it is right more often than 85%. Both gradients come from one backward pass: each side sees the other's part as fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models import Decoder
from ...models.decoder import FINAL
from ...models.heads import MedusaHead, RecurrentHead
from ..teacher import TeacherOutputs
from .base import Pass, Settings, distribution_loss
from .eagle import Eagle
from .medusa import Recurrent

ALONE, BOTH = 0.60, 0.65  # shares of the steps: until when the head learns alone, and from when both do
SMOOTHED, ENOUGH = 0.9, 0.85  # label of what is real; accuracy at which the discriminator rests
MOST = 2048  # places that are compared in a part of a step


class Discriminator(nn.Module):
    """Whether a feature or a mean embedding is the target's, given the state that it follows. For training only."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * size, size, device=device),
            nn.LeakyReLU(0.2),
            nn.Linear(size, size // 2, device=device),
            nn.LeakyReLU(0.2),
            nn.Linear(size // 2, 1, device=device),
        )

    def forward(self, sample: Tensor, state: Tensor) -> Tensor:
        """[N, d] each -> [N] logits."""
        both = torch.cat([F.rms_norm(part.float(), part.shape[-1:]) for part in (sample, state)], dim=1)
        score: Tensor = self.layers(both)
        return score[:, 0]


def adversarial_loss(
    rival: nn.Module, real: Tensor, fake: Tensor, state: Tensor, weight: float, progress: float
) -> Tensor:
    """What both sides add to the supervised loss; only the discriminator's where it learns alone."""
    of_real, of_fake = rival(real.detach(), state), rival(fake.detach(), state)
    own = F.binary_cross_entropy_with_logits(of_real, torch.full_like(of_real, SMOOTHED))
    own = own + F.softplus(of_fake).mean()
    right = ((of_real > 0).float().mean() + (of_fake < 0).float().mean()) / 2
    own = own * (right < ENOUGH)
    if progress < BOTH:
        return own
    fixed = {name: value.detach() for name, value in rival.named_parameters()}
    return own + weight * F.softplus(-torch.func.functional_call(rival, fixed, (fake, state))).mean()


def contest(
    kind: Any, head: Any, rival: nn.Module, outputs: TeacherOutputs, settings: Settings, passes: Iterator[Pass],
    progress: float,
) -> Tensor:  # fmt: skip
    """The loss of both sides at this point of the training."""
    found = list(passes)
    supervised = distribution_loss(head, outputs, iter(found), settings)
    if progress < ALONE:
        return supervised
    slots = outputs.slots(found[0].ahead)
    slots = slots[:: max(1, -(-len(slots) // MOST))]
    real, fake = kind.samples(head, outputs, found[0], slots)
    state = outputs.states[FINAL].flatten(0, 1)[slots]
    added = adversarial_loss(rival, real, fake, state, settings.extra["adversarial_weight"], progress)
    return added if progress < BOTH else supervised + added


@dataclass(frozen=True, slots=True)
class Koala(Eagle):
    """EAGLE's head with two layers; the samples are features."""

    name: str = "koala"
    defaults: Settings = field(
        default_factory=lambda: Settings(
            layers=2, length=4, extra={"distribution_weight": 5.0, "noise": 0.1, "adversarial_weight": 0.1}
        )
    )

    def rival(self, target: Decoder) -> nn.Module:
        return Discriminator(target.config.hidden_size, target.device)

    def loss_at(
        self, head: Any, rival: nn.Module, outputs: TeacherOutputs, settings: Settings, progress: float
    ) -> Tensor:
        passes = self._passes(head, outputs, settings.length, settings.extra["noise"])
        return contest(self, head, rival, outputs, settings, passes, progress)

    def samples(self, head: Any, outputs: TeacherOutputs, one: Pass, slots: Tensor) -> tuple[Tensor, Tensor]:
        """[N, d] the target's own next features, and the head's."""
        return outputs.states[FINAL].flatten(0, 1)[slots + 1], one.features.flatten(0, 1)[slots]


@dataclass(frozen=True, slots=True)
class KoalaMedusa(Recurrent):
    """Medusa's heads with two blocks each; the samples are mean embeddings under the two distributions."""

    name: str = "koala-medusa"
    head: type[RecurrentHead] = MedusaHead
    defaults: Settings = field(default_factory=lambda: Settings(layers=2, length=3, extra={"adversarial_weight": 0.1}))

    def rival(self, target: Decoder) -> nn.Module:
        return Discriminator(target.config.hidden_size, target.device)

    def loss_at(
        self, head: Any, rival: nn.Module, outputs: TeacherOutputs, settings: Settings, progress: float
    ) -> Tensor:
        passes = self._passes(head, outputs, settings.length)
        return contest(self, head, rival, outputs, settings, passes, progress)

    def samples(self, head: Any, outputs: TeacherOutputs, one: Pass, slots: Tensor) -> tuple[Tensor, Tensor]:
        """[N, d] sum_v p(v) e(v) under the target's distribution, and under the head's."""
        table = head.embedding[outputs.words].float()
        guess = head.logits(one.features.flatten(0, 1)[slots]).float().softmax(-1) @ table
        return outputs.logits(slots, one.ahead).float().softmax(-1) @ table, guess
