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
from torch import Tensor

from ...control.cost import CostModel, Costs, DraftTiming
from ...control.lengths import LENGTHS, LengthRule
from ...control.lengths.predicted import FromStates
from ...core.rng.keyed import Rng
from ...types import Budget, DraftBatch, Sequence
from ...types.drafts import empty_drafts
from ..base import Drafter, Round, WrappedDrafter, depths_of
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
        return (verify + self.timing.seconds(drafts)) / self.batch


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
        reader: FromStates | None = None,
    ) -> None:
        """`reader`: what the rule asks, if that reads the target's states."""
        super().__init__(inner)
        self.rule, self._seconds, self._clock, self._reader = rule, seconds, clock, reader
        self.taps = inner.taps | (reader.taps if reader is not None else frozenset())

    @torch.no_grad()
    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        self.inner.observe_prefill(sequences, begin, hidden)
        if self._reader is None:
            return
        for sequence, first, states in zip(sequences, begin, hidden, strict=True):
            if count := len(states[self._reader.tap]):
                newest = {tap: states[tap][-1:] for tap in self._reader.taps}
                token = torch.tensor([sequence.tokens[first + count - 1]], device=newest[self._reader.tap].device)
                self._reader.read([sequence.id], token, newest)

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
            self._seconds.timing.follow(self._clock() - began, nodes, depth)
        return drafts

    def observe(self, round: Round) -> None:
        self.inner.observe(round)
        if self._reader is not None:
            self._read(self._reader, round)
        came_of = zip(round.sequences, round.own_depths(), round.own_accepted(), strict=True)
        for sequence, drafted, accepted in came_of:
            self.rule.observe(sequence.id, drafted, accepted)

    def end(self, sequences: Seq[Sequence]) -> None:
        self.inner.end(sequences)
        for sequence in sequences:
            self.rule.end(sequence.id)
            if self._reader is not None:
                self._reader.end(sequence.id)

    @torch.no_grad()
    def _read(self, reader: FromStates, round: Round) -> None:
        """The newest token that the target has read is the last accepted one, or the one that was pending."""
        path, drafts = round.verdict.path.tolist(), round.drafts.token.tolist()
        nodes = [line[n - 1] if n else -1 for line, n in zip(path, round.accepted, strict=True)]
        tokens = [
            s.tokens[-1] if node < 0 else line[node]
            for s, node, line in zip(round.sequences, nodes, drafts, strict=True)
        ]
        index = round.out.index
        rows = index.gather(1, torch.tensor(nodes, device=index.device)[:, None] + 1)[:, 0]
        states = {tap: round.out.hidden[tap][rows] for tap in reader.taps}
        reader.read([s.id for s in round.sequences], torch.tensor(tokens, device=index.device), states)

    def _limited(self, sequence: Sequence) -> Budget:
        limit = sequence.budget.chain
        length = self.rule.longest(sequence.id, limit) if limit else 0
        return sequence.budget._replace(depth=max(0, min(length, limit)))


def _set_budgets(sequences: Seq[Sequence], budgets: Seq[Budget]) -> None:
    for sequence, budget in zip(sequences, budgets, strict=True):
        sequence.budget = budget
