"""An rng that writes down the probability of every test; all tests fail, so that none is skipped."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from foredraft.core.rng.keyed import Purpose
from foredraft.types import Distribution


@dataclass
class Ledger:
    """For one sequence. Draws give the top token."""

    tests: list[float] = field(default_factory=list)
    drawn: list[list[float]] = field(default_factory=list)  # the normalised distributions that tokens were drawn from

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        self.tests.append(float(prob[0]))
        return torch.tensor([False])

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        probs = distribution.dense()[0].double()
        self.drawn.append((probs / probs.sum()).tolist())
        return probs.argmax()[None]

    def draw_at(self, distribution: Distribution, depth: Tensor) -> Tensor:
        return self.draw(distribution, Purpose.EMIT, depth)

    def choose(self, index: Tensor) -> Ledger:
        return self
