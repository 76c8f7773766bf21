"""Rules that end a draft chain early. They see draft laws and draft states only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .shape import Step


class Sure:
    """What the rules share: a chain starts with confidence one."""

    def begin(self, batch: int, device: torch.device) -> Tensor:
        return torch.ones(batch, device=device)


@dataclass(frozen=True)
class Confidence(Sure):
    """Kangaroo: stop behind a token whose law gives no id more than `threshold`."""

    threshold: float = 0.6

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        best, _ = step.top(1)
        confidence = best[:, 0, 0].exp()
        return confidence, confidence >= self.threshold


@dataclass(frozen=True)
class PathConfidence(Sure):
    """EAGLE-2's value as a stop rule: stop where the product of confidences along the chain falls below."""

    threshold: float = 0.3

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        best, _ = step.top(1)
        state = state * best[:, 0, 0].exp()
        return state, state >= self.threshold


@dataclass(frozen=True)
class PredictedRejection(Sure):
    """SpecDec++: stop where some token so far is rejected with more than `threshold`, as a trained head predicts.

    The head reads the draft model's state behind a drafted token; the token that this state yields is kept too.
    """

    accept: Callable[[Tensor], Tensor]  # [B, d] draft states -> [B] logits of acceptance of the tokens read
    threshold: float = 0.5

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        if depth > 0:  # at the root the state is that of the pending token, which is certain
            assert step.hidden is not None
            state = state * torch.sigmoid(self.accept(step.hidden[step.rows[:, 0]]))
        return state, 1 - state <= self.threshold
