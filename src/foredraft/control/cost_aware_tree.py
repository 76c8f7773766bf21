"""EAGLE-2's tree at the size that pays: deeper and wider only while that brings more tokens per second.

A node's value, the product of draft probabilities along its path, stands for the chance that it is accepted; a
calibration makes it that chance. The best n nodes are worth 1 + sum of their values tokens, and cost a pass over n + 1
rows and the levels that were read.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.rng.keyed import Rng
from ..core.shapes.eagle2_tree import Eagle2Tree
from ..core.shapes.step import Stepper
from ..core.trees.builder import TreeBuilder
from ..types import Budget, DraftBatch
from .calibrated import CalibratedStepper
from .calibration import Calibration

Numbers = NDArray[np.floating]
LIKELY = np.array([[0.65], [0.12]])  # chances of a node's two likeliest children, before they are read


class Costs(Protocol):
    """A cost model, fixed or live."""

    def seconds(self, rows: float, context: float = 512, batch: float = 1) -> float: ...


@dataclass(slots=True)
class DraftCosts:
    """What drafting costs at the moment. Whoever times drafts may set `level_seconds`."""

    costs: Costs
    level_seconds: float  # of one level, read for all sequences

    @classmethod
    def of(cls, costs: Costs) -> DraftCosts:
        """Before anything was timed: a level costs a twelfth of a plain step."""
        return cls(costs, costs.seconds(1) / 12)

    def verify(self, most: int, batch: int) -> list[float]:
        """Seconds per sequence of a pass over the pending token and 0 .. most drafts of each of `batch` sequences."""
        return [self.costs.seconds(n + 1, batch=batch) / batch for n in range(most + 1)]

    def level(self, batch: int) -> float:
        """Seconds per sequence of reading one level."""
        return self.level_seconds / batch


@dataclass(frozen=True, slots=True)
class CostAwareTree(Eagle2Tree):
    """A value tree that weighs every level and every node against its price, as it is when the round begins.

    Whoever hands it a calibration tells that what the rounds wrote, and which sequences have ended.
    """

    draft_costs: DraftCosts = field(kw_only=True)
    calibration: Calibration | None = field(default=None, kw_only=True)  # None = draft probabilities are chances

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        verify, level = (
            np.array(self.draft_costs.verify(self.nodes, stepper.batch)),
            self.draft_costs.level(stepper.batch),
        )
        shape = PricedTree(self.nodes, self.width, self.depth, verify=verify, level=level)
        if self.calibration is None:
            return shape.grow(stepper, budgets, rng)
        calibrated = CalibratedStepper(stepper, self.calibration.curve(stepper.ids, self.width))
        drafts = shape.grow(calibrated, budgets, rng)
        if drafts.width:
            self.calibration.claim(stepper.ids, drafts, *calibrated.said_of(drafts))
        return drafts


@dataclass(frozen=True, slots=True)
class PricedTree(Eagle2Tree):
    """The value tree of one round at known prices.

    Each decision waits for values of all sequences, and then is small: it is made on the host.
    """

    verify: Numbers = field(kw_only=True)  # [nodes + 1] seconds of a pass over 0 .. nodes drafts
    level: float = field(kw_only=True)  # seconds of reading one level

    def goes_on(self, builder: TreeBuilder, value: Tensor, level: int) -> bool:
        """The next level is worth what its nodes bring beyond their own price; one sequence of the batch is enough."""
        tokens = 1 + self._falling(builder.values()).cumsum(axis=1)
        seconds = self.verify[1 : tokens.shape[1] + 1] + (level - 1) * self.level
        rate = (tokens / seconds).max(axis=1)  # [B]
        bar = rate * (self.verify[-1] - self.verify[0]) / self.nodes  # tokens that a node must bring
        hope = np.exp(value.cpu().numpy())[:, None, :] * LIKELY  # [B, 2, w]
        gain = np.maximum(hope - bar[:, None, None], 0).sum(axis=(1, 2))
        return bool((gain > rate * self.level).any())

    def within(self, builder: TreeBuilder, budgets: Seq[Budget]) -> Seq[Budget]:
        """As many of the best nodes as make tokens per second largest; none where plain decoding is faster."""
        gains = self._falling(builder.within(budgets))
        tokens = 1 + np.concatenate((np.zeros_like(gains[:, :1]), gains.cumsum(axis=1)), axis=1)
        rate = tokens / (self.verify[: tokens.shape[1]] + builder.levels * self.level)
        count = rate.argmax(axis=1).tolist()
        return [b._replace(nodes=min(b.nodes, n)) for b, n in zip(budgets, count, strict=True)]

    def _falling(self, value: Tensor) -> Numbers:
        """The largest chances of each sequence, as many as it may have nodes."""
        return np.exp(-np.sort(-value.cpu().numpy(), axis=1)[:, : self.nodes])
