"""The decision model of target-initialised multi-candidate decoding (Lu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch.nn.functional as F
from torch import Tensor

from ...core.shapes.fan import features_of_logits
from ...errors import UsageError
from ...models import Decoder
from ...models.heads import FastDraft, HeadSpec, Identity, load_head, weights_digest
from ...models.heads.decision import PROBABILITIES, STATE, DecisionHead
from ..teacher import TeacherOutputs
from .accept import guesses
from .base import Settings


@dataclass(frozen=True, slots=True)
class Decision:
    """Learns min(1, p / q) of what the draft model would put after the target's own text; at temperature 0, a match."""

    name: str = "decision"
    defaults: Settings = field(
        default_factory=lambda: Settings(lr=1e-3, extra={"reads": PROBABILITIES, "temperature": 0.0})
    )
    drafter: Path | None = None  # folder of the fastdraft head that it belongs to
    drafters: tuple[str, ...] = ("fastdraft",)  # kinds that it may be

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return ()

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        if self.drafter is None:
            raise UsageError("a decision model belongs to a drafter; name it: --drafter FOLDER of a fastdraft head")
        extra = {"drafter": weights_digest(self.drafter), "reads": settings.extra["reads"]}
        return HeadSpec(self.name, identity, 0, (), settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> DecisionHead:
        assert self.drafter is not None
        head = DecisionHead(target, spec, words)
        draft, _ = load_head(self.drafter, "fastdraft", target, spec.target)
        head.follow(cast(FastDraft, draft))
        return head

    def loss(self, head: DecisionHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        found = guesses(head.draft, outputs, settings.extra["temperature"])
        read = found.states if head.reads == STATE else features_of_logits(found.logits)
        return F.binary_cross_entropy_with_logits(head(read), found.chance)

    def guess(self, head: DecisionHead, outputs: TeacherOutputs, length: int) -> None:
        return None
