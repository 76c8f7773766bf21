"""Dice that write down the probability of every test; all tests fail, so that none is skipped."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from foredraft.core.rng.keyed import Purpose
from foredraft.types import Law


@dataclass
class Ledger:
    """For one sequence. Draws give the likeliest token."""

    tests: list[float] = field(default_factory=list)
    drawn: list[list[float]] = field(default_factory=list)  # the normalised laws that tokens were drawn from

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        self.tests.append(float(prob[0]))
        return torch.tensor([False])

    def draw(self, law: Law, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        probs = law.dense()[0].double()
        self.drawn.append((probs / probs.sum()).tolist())
        return probs.argmax()[None]

    def draw_at(self, law: Law, depth: Tensor) -> Tensor:
        return self.draw(law, Purpose.EMIT, depth)

    def choose(self, index: Tensor) -> Ledger:
        return self
