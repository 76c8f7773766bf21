"""The enumerating rng: run any function of an rng under all outcomes, with their exact probabilities.

The function is run again and again; each run follows a given prefix of outcomes and takes the first branch of every
later draw, which the next run then changes, depth first. So rules, drafters and the whole engine loop are enumerated
as they are written, without a second implementation. All draws are independent, those of batch mates too, so the
outcomes of a batch are the product of those of its sequences: few sequences, small tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from ...types import Distribution
from .keyed import Purpose

T = TypeVar("T")


@dataclass(slots=True)
class _Branch:
    options: list[tuple[int, float]]  # (outcome, probability), probability > 0
    taken: int = 0


@dataclass(slots=True)
class EnumeratingRng:
    """Follows a script of outcomes and extends it with first choices; of a batch, sequence by sequence."""

    script: list[_Branch] = field(default_factory=list)
    at: int = 0
    weight: float = 1.0

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        chances = prob.reshape(-1).tolist()
        return torch.tensor([bool(self.take([(1, p), (0, 1.0 - p)])) for p in chances])

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        probs = distribution.dense().double()
        probs = probs / probs.sum(dim=1, keepdim=True)
        return torch.tensor([self.take(list(enumerate(row))) for row in probs.tolist()])

    def draw_at(self, distribution: Distribution, depth: Tensor) -> Tensor:
        return self.draw(distribution, Purpose.EMIT, depth)

    def draw_rows(self, distribution: Distribution, depth: Tensor) -> Tensor:
        return self.draw(distribution, Purpose.EMIT, depth).view_as(depth)

    def choose(self, index: Tensor) -> EnumeratingRng:
        return self

    def to(self, device: torch.device) -> EnumeratingRng:
        return self

    def take(self, options: list[tuple[int, float]]) -> int:
        """The outcome of this run; the other options follow in later runs."""
        options = [(outcome, p) for outcome, p in options if p > 0]
        if len(options) == 1:
            return options[0][0]
        if self.at == len(self.script):
            self.script.append(_Branch(options))
        branch = self.script[self.at]
        self.at += 1
        outcome, p = branch.options[branch.taken]
        self.weight *= p
        return outcome


def outcomes(run: Callable[[EnumeratingRng], T]) -> Iterator[tuple[float, T]]:
    """Every (probability, result) of `run`; the probabilities add up to 1."""
    script: list[_Branch] = []
    while True:
        rng = EnumeratingRng(script)
        result = run(rng)
        yield rng.weight, result
        while script and script[-1].taken == len(script[-1].options) - 1:
            script.pop()
        if not script:
            return
        script[-1].taken += 1


def distribution_of_outcomes(run: Callable[[EnumeratingRng], Hashable]) -> dict[Hashable, float]:
    """The distribution of the result of `run`."""
    distribution: dict[Hashable, float] = defaultdict(float)
    for weight, result in outcomes(run):
        distribution[result] += weight
    return dict(distribution)
