"""EAGLE-2's tree at the size that pays: deeper and wider only while that brings more tokens per second.

A node's value, the product of draft probabilities along its path, is used as the probability that it is accepted; a
calibration makes it that. The best n nodes bring 1 + sum of their values tokens, and cost a pass over n + 1 rows and
the levels that were read.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..core.rng.keyed import Rng
from ..core.shapes.eagle2_tree import Eagle2Tree
from ..core.shapes.step import Stepper
from ..core.trees.builder import TreeBuilder
from ..core.trees.host_builder import Prices
from ..types import Budget, DraftBatch
from .calibrated import CalibratedStepper
from .calibration import Calibration
from .constants import CHILD_PRIORS
from .cost import Costs, DraftTiming
from .objective import Numbers, rates

_CHILDREN = np.array(CHILD_PRIORS)[:, None]


@dataclass(frozen=True, slots=True)
class CostAwareTree(Eagle2Tree):
    """A value tree that weighs every level and every node against its cost when the round begins.

    Whoever times drafts updates `timing`; whoever passes a calibration gives it what the rounds wrote, and which
    sequences have ended.
    """

    costs: Costs = field(kw_only=True, repr=False)
    timing: DraftTiming = field(kw_only=True)
    calibration: Calibration | None = field(default=None, kw_only=True)  # None = draft probabilities are right

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        verify = self.costs.by_drafts(self.nodes, stepper.batch)
        first, level = self.timing.first_seconds / stepper.batch, self.timing.level_seconds / stepper.batch
        shape = PricedTree(self.nodes, self.width, self.depth, verify=verify, first=first, level=level)
        if self.calibration is None:
            return shape.grow(stepper, budgets, rng)
        calibrated = CalibratedStepper(stepper, self.calibration.curve(stepper.ids, self.width))
        drafts = shape.grow(calibrated, budgets, rng)
        if drafts.width:
            self.calibration.expect(stepper.ids, drafts, *calibrated.given_for(drafts))
        return drafts


@dataclass(frozen=True, slots=True)
class PricedTree(Eagle2Tree):
    """The value tree of one round at known costs.

    Each decision needs values of all sequences, and then is small: it is made on the host.
    """

    verify: Numbers = field(kw_only=True)  # [nodes + 1] seconds of a pass over 0 .. nodes drafts
    first: float = field(kw_only=True)  # seconds of reading the first level ...
    level: float = field(kw_only=True)  # ... and of each after it

    def goes_on(self, builder: TreeBuilder, value: Tensor, level: int) -> bool:
        """Whether the next level's nodes bring more than they cost, for one sequence of the batch at least."""
        found = np.exp(builder.values().cpu().numpy())
        hoped = np.exp(value.cpu().numpy())[:, None, :] * _CHILDREN  # [B, 2, w]: none exceeds its parent
        more = np.concatenate((found, hoped.reshape(len(found), -1)), axis=1)
        return bool((self._best(more, level) > self._best(found, level - 1)).any())

    def _best(self, gains: Numbers, levels: int) -> Numbers:
        """[B] the highest rate of some of these nodes, once `levels` levels have been read."""
        gains = -np.sort(-gains, axis=1)[:, : self.nodes]
        best: Numbers = rates(gains, self._seconds(gains.shape[1], levels))[:, 1:].max(axis=1)
        return best

    def _seconds(self, nodes: int, levels: int) -> Numbers:
        """[nodes + 1] of a round that verifies 0 .. nodes drafts."""
        seconds: Numbers = self.verify[: nodes + 1] + self.first + (levels - 1) * self.level
        return seconds

    def within(self, builder: TreeBuilder, budgets: Seq[Budget]) -> Seq[Budget]:
        """As many of the best nodes as have the highest rate; none where plain decoding is faster."""
        gains = np.exp(-np.sort(-builder.within(budgets).cpu().numpy(), axis=1)[:, : self.nodes])
        count = rates(gains, self._seconds(gains.shape[1], builder.levels)).argmax(axis=1).tolist()
        return [b._replace(nodes=min(b.nodes, n)) for b, n in zip(budgets, count, strict=True)]

    def prices(self) -> Prices:
        return Prices(self.verify, self.first, self.level, _CHILDREN)
