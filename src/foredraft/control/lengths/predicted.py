"""AdaEAGLE's rules: a predictor says before drafting how many tokens will be accepted, and so many are drafted.

The predictor is any function of a sequence id; `FromStates` is one that reads the target's state at the newest verified
token, as AdaEAGLE's trained head does. `expected.ExpectedAccepted` needs no training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core.shapes.step import Step
from ...core.shapes.stops import confidence_of
from .base import Unlearned

Predictor = Callable[[int], float]  # sequence id -> tokens that would be accepted


@dataclass
class FromStates:
    """Predictions that are made as soon as the target has read a sequence's newest verified tokens."""

    tap: int  # the target's state that is read
    head: Callable[[Tensor, Tensor], Tensor]  # tokens [B] and states [B, d] -> lengths [B]
    first: float = 5.0  # before anything was read
    _lengths: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def taps(self) -> frozenset[int]:
        return frozenset({self.tap})

    def read(self, ids: Sequence[int], tokens: Tensor, states: Mapping[int, Tensor]) -> None:
        """States [B, d] by tap at these sequences' newest tokens that the target has read."""
        self._lengths |= zip(ids, self.head(tokens, states[self.tap]).tolist(), strict=True)

    def __call__(self, id: int) -> float:
        return self._lengths.get(id, self.first)

    def end(self, id: int) -> None:
        self._lengths.pop(id, None)


@dataclass(frozen=True)
class Predicted(Unlearned):
    """Drafts the predicted number, rounded; 0 is a plain step."""

    predict: Predictor

    def longest(self, id: int, limit: int) -> int:
        return min(max(round(self.predict(id)), 0), limit)


@dataclass(frozen=True)
class PredictedOrConfident:
    """AdaEAGLE-DDD, a stop rule: a chain ends only once the predicted length is reached *and* its path is unlikely."""

    predict: Predictor
    threshold: float = math.exp(-0.6)  # of the product of confidences along the chain

    def begin(self, ids: Sequence[int], device: torch.device) -> Tensor:
        lengths = [round(self.predict(id)) for id in ids]
        return torch.tensor([[1.0, length] for length in lengths], dtype=torch.float32, device=device)

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        path, length = state.unbind(dim=1)
        path = path * confidence_of(step)
        return torch.stack((path, length), dim=1), (depth + 1 < length) | (path >= self.threshold)
