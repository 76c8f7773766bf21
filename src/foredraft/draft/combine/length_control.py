"""A drafter whose draft lengths are set by a length rule: asked before a round, given the outcome after it.

The rule sets each sequence's budget before anything is drawn, so nothing drawn is dropped for what it is (invariant 5).
It knows no rule by name; `control.lengths.LENGTHS` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from ...control.cost import CostModel, Costs, DraftTiming
from ...control.lengths import LENGTHS, LengthRule
from ...core.rng.keyed import Rng
from ...types import Budget, DraftBatch, Sequence, Topology
from ...types.drafts import empty_drafts
from ..base import Drafter, Round, WrappedDrafter
from .team import mean_length


@dataclass(slots=True)
class TimedRound:
    """Seconds per sequence of a round by its number of drafts: the pass by the cost model, drafting as timed."""

    costs: Costs
    timing: DraftTiming
    context: float = 512
    batch: int = 1

    def __call__(self, drafts: int) -> float:
        verify = self.costs.seconds(drafts + 1, self.context, self.batch)
        return (verify + drafts * self.timing.level_seconds) / self.batch


def with_length(drafter: Drafter, name: str, costs: CostModel, **options: float) -> LengthControlDrafter:
    """A drafter under the length rule of this name and options (`LENGTHS`), which weighs the costs of this machine."""
    measured = Costs(costs)
    seconds = TimedRound(measured, measured.untimed())
    return LengthControlDrafter(drafter, LENGTHS[name](seconds, **options), seconds)


class LengthControlDrafter(WrappedDrafter):
    """A rule that is a stop rule too goes into the drafter's chain as well."""

    def __init__(
        self,
        inner: Drafter,
        rule: LengthRule,
        seconds: TimedRound | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(inner)
        self.rule, self._seconds, self._clock = rule, seconds, clock

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        if self._seconds is not None:
            self._seconds.batch = len(sequences)
            self._seconds.context = mean_length(sequences)
        before = [sequence.budget for sequence in sequences]
        limited = [self._limited(sequence) for sequence in sequences]
        if not any(budget.chain for budget in limited):  # all lengths are 0: the drafter is not asked
            return empty_drafts(len(sequences))
        _set_budgets(sequences, limited)
        try:
            return self._timed(sequences, rng)
        finally:
            _set_budgets(sequences, before)

    def _timed(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        began = self._clock()
        drafts = self.inner.propose(sequences, rng)
        if self._seconds is not None and (depth := max(depths_of(drafts), default=0)):
            nodes = sum(drafts.lengths()) / drafts.batch
            self._seconds.timing.follow((self._clock() - began) / depth, nodes, depth)
        return drafts

    def observe(self, round: Round) -> None:
        self.inner.observe(round)
        for sequence, drafted, accepted in zip(round.sequences, depths_of(round.drafts), round.accepted, strict=True):
            self.rule.observe(sequence.id, drafted, accepted)

    def end(self, sequences: Seq[Sequence]) -> None:
        self.inner.end(sequences)
        for sequence in sequences:
            self.rule.end(sequence.id)

    def _limited(self, sequence: Sequence) -> Budget:
        limit = sequence.budget.chain
        length = self.rule.longest(sequence.id, limit) if limit else 0
        return sequence.budget._replace(depth=max(0, min(length, limit)))


def _set_budgets(sequences: Seq[Sequence], budgets: Seq[Budget]) -> None:
    for sequence, budget in zip(sequences, budgets, strict=True):
        sequence.budget = budget


def depths_of(drafts: DraftBatch) -> Seq[int]:
    """How far each sequence was drafted along its longest path."""
    if drafts.topology is Topology.CHAIN or not drafts.width:
        return drafts.lengths()
    depths: list[int] = torch.where(drafts.used(), drafts.depth, 0).amax(dim=1).tolist()
    return depths
