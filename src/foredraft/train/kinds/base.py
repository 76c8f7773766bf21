"""The seam of a kind of drafter: six verbs and names, and the loss and the guesses that most kinds share.

Most kinds are *passes*: features at every place of a text, each pass about the token so many places ahead. From them
follow the loss (how far the distributions are apart) and the guesses (which token each would draft).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...models import Decoder
from ...models.heads import HeadSpec, Identity
from ..objectives import LABELS, OBJECTIVES, cross_entropy
from ..teacher import TeacherOutputs, pull
from .training_stages import Stage

OPTIONAL = {  # words of `extra` without a default, and the kinds that know them
    "alignment": {"griffin"},
    "begun_as": {"fastdraft"},
    "exits": {"s2d"},
    "taps": {"eagle3", "forerunner", "koala-medusa", "medusa", "mlp-speculator"},
}
FIXED_LAYERS = frozenset(  # kinds that have no choice
    {"decision", "eesd", "falcon", "griffin", "kangaroo", "mlp-speculator", "sdsat"}
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What may be chosen about training; every kind has its own defaults."""

    draft_vocab_size: int = 8192
    layers: int = 1
    length: int = 5  # drafted tokens that it is trained for
    ff: int | None = None  # width of the feed-forward part of EAGLE heads; None = as wide as the target's
    objective: str = "kl"
    lr: float = 1e-3
    decay: float = 0.8  # weight of each further token ahead
    stages: tuple[Stage, ...] = (Stage(),)
    exit_layer: int = 6  # kangaroo: layers that are shared
    extra: dict[str, Any] = field(default_factory=dict)

    def stage(self, progress: float) -> tuple[Stage, float]:
        """The stage at a progress from 0 to 1, and the progress within it."""
        begin = 0.0
        for stage in self.stages:
            if progress < stage.end or stage is self.stages[-1]:
                return stage, min(1.0, (progress - begin) / max(stage.end - begin, 1e-9))
            begin = stage.end
        raise AssertionError("there is at least one stage")

    def within(self, stage: Stage) -> Settings:
        """The settings of one stage."""
        return replace(self, length=stage.length or self.length, objective=stage.objective or self.objective)


@dataclass(frozen=True, slots=True)
class Pass:
    """Features at every place about the token `ahead` places further on."""

    ahead: int
    features: Tensor  # [B, T, d]
    penalty: Tensor | None = None  # what the kind adds to the loss by itself
    where: Tensor | None = None  # [B, T] bool: places that the kind leaves in the loss


class Kind(Protocol):
    """A kind of drafter, as the trainer sees it."""

    @property
    def name(self) -> str: ...

    @property
    def defaults(self) -> Settings: ...

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        """Target states that its teacher outputs must hold, besides FINAL."""

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        """The head that will be built; `outputs` is a first look at the data, for scales."""

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> nn.Module:
        """A fresh head."""

    def loss(self, head: Any, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        """What training makes small."""

    def guess(self, head: Any, outputs: TeacherOutputs, length: int) -> Tensor | None:
        """[B, T, k] target ids that it would draft after slot t, had all before been right; None = no drafter.

        Kinds of a fixed k have that whatever the length, and the caller cuts.
        """


@runtime_checkable
class ScheduledKind(Protocol):
    """A kind whose loss depends on how far the training is, and which may train another module beside its head."""

    def rival(self, target: Decoder) -> nn.Module | None:
        """A module with an optimiser of its own, which no file keeps."""

    def loss_at(self, head: Any, rival: Any, outputs: TeacherOutputs, settings: Settings, progress: float) -> Tensor:
        """The loss of all modules together at `progress`, 0 to 1; at 0 it is the head's alone."""


@runtime_checkable
class ContextKind(Protocol):
    """A kind whose head attends to the target's own keys and values."""

    def reads(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        """Layers of the target whose keys and values its teacher outputs must hold."""


def layer_numbers(extra: dict[str, Any], name: str) -> tuple[int, ...]:
    """What --set says of layers, as 9,19,29; nothing where it says nothing."""
    given = extra.get(name, "")
    if not isinstance(given, str | float):
        return tuple(given)
    text = str(given).removesuffix(".0")
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"--set {name} takes layers with commas between, as 9,19,29, not {text!r}") from None


def named_layers(settings: Settings, name: str, most: int) -> tuple[int, ...]:
    """Layers of the target that --set names."""
    found = layer_numbers(settings.extra, name)
    typed = isinstance(settings.extra.get(name, ""), str | float)  # others come from code, which may name FINAL too
    if typed and any(not 0 <= number <= most for number in found):
        raise UsageError(f"--set {name} {','.join(map(str, found))}: this target has 0 to {most}")
    return found


def typical_size(outputs: TeacherOutputs, tap: int) -> float:
    """Median over the written tokens of the root mean square of a state. The mean would not do: the states of a text's
    first tokens and of padding are a hundred times larger in many models."""
    states = outputs.states[tap][outputs.written].float()
    return round(float(states.pow(2).mean(-1).sqrt().median()), 4)


def distribution_loss(head: Any, outputs: TeacherOutputs, passes: Iterator[Pass], settings: Settings) -> Tensor:
    """Weighted mean over the passes of the distance between the drafter's distribution and the target's."""
    total, weights = torch.zeros((), device=outputs.ids.device), 0.0
    for j, one in enumerate(passes):
        slots = outputs.slots(one.ahead)
        if one.where is not None:
            slots = slots[one.where.flatten()[slots]]
        part = _distances(head.logits(one.features.flatten(0, 1)[slots]), outputs, slots, one.ahead, settings.objective)
        value = part.sum() / max(len(part), 1)
        if one.penalty is not None:
            value = settings.extra.get("distribution_weight", 1.0) * value + one.penalty
        total = total + settings.decay**j * value
        weights += settings.decay**j
    return total / weights


def _distances(logits: Tensor, outputs: TeacherOutputs, slots: Tensor, ahead: int, objective: str) -> Tensor:
    """[n] of each slot: from the target's distribution, or from the very token of the text (`ce`)."""
    if objective != LABELS:
        return OBJECTIVES[objective](logits, outputs.logits(slots, ahead))
    label = outputs.labels(slots, ahead)
    return cross_entropy(logits[label >= 0], label[label >= 0])


@torch.no_grad()
def best_words(head: Any, outputs: TeacherOutputs, features: Tensor) -> Tensor:
    """[B, T] target ids that features [B, T, d] make most likely."""
    best = torch.cat([head.logits(part).argmax(-1) for part in torch.split(features.flatten(0, 1), 16384)])
    return outputs.words[best].view(features.shape[:2])


def stepwise_guess(head: Any, outputs: TeacherOutputs, passes: Iterator[Pass]) -> Tensor:
    """Guesses of kinds whose j-th pass is about the j-th drafted token."""
    return torch.stack([best_words(head, outputs, one.features) for one in passes], dim=2)


def language_guess(head: Any, outputs: TeacherOutputs, one: Pass, length: int) -> Tensor:
    """Guesses of language models: place t + 1 + j says what comes next."""
    next_word = best_words(head, outputs, one.features)
    return torch.stack([pull(next_word, 1 + j, -1) for j in range(length)], dim=2)
