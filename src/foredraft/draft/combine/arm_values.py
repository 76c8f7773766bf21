"""Expected tokens per second of each arm's drafts for a sequence in the next round, learnt from the rounds so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Seq
from itertools import takewhile

from ...control.acceptance import AcceptanceRecord
from ...control.constants import (
    ACCEPTANCE_PRIOR,
    CHILD_PRIORS,
    EMA_RATE,
    GRAFT_FACTORS,
    GRAFT_MOST,
    HORIZON,
    LOOKUP_CONFIDENCE,
    LOOKUP_PRIORS,
    PROMPT_TOKENS_PER_LEVEL,
    SHORT_PROMPT,
    SMALL_BATCH,
)
from ...control.cost import Costs, DraftTiming
from ...control.objective import best_count, rate
from ...types import Sequence
from .arms import Arm, Candidate

CHAIN_GAINS = [CHILD_PRIORS[0] ** n for n in range(1, 17)]  # P(accepted) along a head's chain before any was drafted


def growth(batch: int) -> float:
    """How much longer a level takes for a batch than for a few sequences, whose rows fit into one tile."""
    return max(1.0, batch / SMALL_BATCH)


class ArmValues:
    """Acceptance and times of all arms."""

    def __init__(self, arms: Seq[Arm], costs: Costs) -> None:
        self.arms, self.costs, self.record = list(arms), costs, AcceptanceRecord()
        self.timings = {arm.name: arm.timing for arm in self.arms if not arm.free}
        self._sizes: dict[tuple[int, ...], DraftTiming] = {}  # of trees, by the lookups beside them
        self._read: dict[int, int] = {}  # arm -> levels that it read this round
        self._token_seconds = {name: t.level_seconds / PROMPT_TOKENS_PER_LEVEL for name, t in self.timings.items()}

    def seconds(self, sequence: Sequence, drafts: int, batch: int) -> float:
        """Its share of a pass over so many drafts of every sequence."""
        return self.costs.seconds(drafts + 1, len(sequence.tokens), batch) / batch

    def _drafting(self, i: int, levels: float, batch: int) -> float:
        """Seconds of one sequence's part in the levels of an arm with a model, if all draft together."""
        return self.arms[i].timing.seconds(levels) * growth(batch) / batch

    def reading(self, i: int, tokens: int) -> float:
        """Seconds in which an arm with a model reads a prompt; short ones are not weighed."""
        return max(0, tokens - SHORT_PROMPT) * self._token_seconds[self.arms[i].name]

    def of_lookup(self, i: int, sequence: Sequence, tokens: list[int], chances: list[float], batch: int) -> Candidate:
        """A lookup that has found these tokens; the chance of the first is how confident it is."""
        level = bisect_right(LOOKUP_CONFIDENCE, chances[0]) if chances else 0
        gains = self.record.gains(sequence.id, (i, level), len(tokens), LOOKUP_PRIORS[level])
        count, best = best_count(gains, lambda n: self.seconds(sequence, n, batch))
        return Candidate(i, (i, level), count, best, tokens, level, gains)

    def of_model(
        self, i: int, sequence: Sequence, lookups: Seq[Candidate], fresh: bool, batch: int, unread: int = 0
    ) -> Candidate | None:
        """A drafter with a model, beside lookups. A fresh one must first read what others wrote, and one that has never
        drafted for the sequence all of it."""
        arm = self.arms[i]
        length = min(arm.longest, sequence.budget.depth)
        if length <= 0 or len(sequence.tokens) >= arm.drafter.max_length:
            return None
        once = self.reading(i, unread) / HORIZON

        def seconds(nodes: int, levels: float) -> float:
            return self.seconds(sequence, nodes, batch) + self._drafting(i, levels + fresh, batch) + once

        if not arm.tree:
            gains = self.record.gains(sequence.id, (i, 0), length, ACCEPTANCE_PRIOR)
            count, best = best_count(gains, lambda n: seconds(n, n), least=1)  # its value if it drafts at all
            return Candidate(i, (i, 0), count, best, unread=unread)
        key = (i, 1 + max((c.confidence for c in lookups), default=-1) if arm.calibration is not None else 0)
        usual = self._sizes.get(key) or arm.timing
        if not usual.rounds and arm.calibration is not None:  # it grows while that pays
            count, best = best_count(CHAIN_GAINS[:length], lambda n: seconds(n, n), least=1)
            return Candidate(i, key, length, best, unread=unread)
        nodes, levels = (usual.nodes, usual.levels) if usual.rounds else (arm.drafter.nodes // 2, length)
        expected = self.record.accepted_of_tree(sequence.id, key)
        return Candidate(i, key, length, rate(expected, seconds(round(nodes), min(levels, length))), unread=unread)

    def gains_on_tree(self, sequence: int, lookup: Candidate, agreement: int) -> list[float]:
        """P(accepted) of looked-up tokens, given how a head ranks the first: not in its tree, in it, or top."""
        lookup.graft_key = (*lookup.key, agreement)
        prior = min(GRAFT_MOST, GRAFT_FACTORS[agreement] * LOOKUP_PRIORS[lookup.confidence])
        return self.record.gains(sequence, lookup.graft_key, len(lookup.tokens), prior)

    def paying(self, i: int, sequence: Sequence, values: Seq[float], batch: int) -> int:
        """How many of a grown tree's nodes, the best first, to verify; what was read for them is spent already."""
        spent = self._drafting(i, self._read[i], batch)
        return best_count(values[: sequence.budget.nodes], lambda n: spent + self.seconds(sequence, n, batch))[0]

    def drafted(self, i: int, candidates: Seq[Candidate], seconds: float, levels: int, nodes: Seq[int]) -> None:
        """An arm with a model took so long to read so many levels for the nodes of each candidate.

        A round in which it read a prompt as well says nothing about levels.
        """
        timing, unread = self.arms[i].timing, sum(candidate.unread for candidate in candidates)
        grown, first = growth(len(candidates)), unread > 0
        round = timing.seconds(levels) if first else seconds / grown
        self._read[i] = levels
        if first and timing.rounds:
            token = max(0.0, seconds - timing.seconds(levels) * grown) / unread
            self._token_seconds[self.arms[i].name] += EMA_RATE * (token - self._token_seconds[self.arms[i].name])
        if timing.rounds or not first:
            timing.follow(round, sum(nodes) / len(nodes), levels)
        for candidate, count in zip(candidates, nodes, strict=True):
            self._sizes.setdefault(candidate.key, DraftTiming()).follow(round, count, levels)

    def learn(
        self, sequence: int, candidates: Seq[Candidate], chosen: Candidate | None, wrote: Seq[int]
    ) -> dict[int, int]:
        """The text that a round wrote shows how far each lookup was right, chosen or not: arm -> tokens."""
        found: dict[int, int] = {}
        for lookup in candidates:
            known = min(len(lookup.tokens), len(wrote))
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(lookup.tokens, wrote, strict=False)))
            if lookup.tokens:
                found[lookup.arm] = right
            for key in (lookup.key, lookup.graft_key):
                if known and key is not None:
                    self.record.observe(sequence, key, known, right)
        if chosen is not None and not chosen.tokens:
            if self.arms[chosen.arm].tree:
                self.record.observe_tree(sequence, chosen.key, len(wrote) - 1)
            else:
                self.record.observe(sequence, chosen.key, chosen.count, min(len(wrote) - 1, chosen.count))
        for arm in self.arms:
            if arm.calibration is not None:
                arm.calibration.observe(sequence, wrote)
        return found

    def end(self, sequence: int) -> None:
        self.record.end(sequence)
        for arm in self.arms:
            if arm.calibration is not None:
                arm.calibration.end(sequence)
