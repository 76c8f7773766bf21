"""What each arm's drafts are worth for a sequence in the next round, by what became of its drafts so far."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

from ...control.acceptance import Record, Yields
from ...control.cost import best_count
from ...control.cost_cache import CostCache
from ...control.draft_timing import DraftTiming
from ...types import Sequence
from .arms import Arm, Offer

SURE = (0.3, 0.55, 0.7)  # a drafter's own chance for its first token, by which its record is kept apart
FREE_PRIORS, PAID_PRIOR = (0.2, 0.4, 0.6, 0.8), 0.6  # chance of a drafted token before anything is known
AGREED = (0.5, 0.8, 1.1)  # times that chance, where a tree lacks the first token, holds it, or prefers it
TOKENS_A_LEVEL = 16  # of a prompt that are read in the time of a level of drafts, before any prompt was
SHORT = 128  # tokens of a prompt whose reading is not weighed
HORIZON = 32  # rounds over which reading a prompt must pay
FEW = 4  # sequences whose drafts on a level cost no more than one's
TREE_PRIOR = 1.5  # drafts of a tree that are accepted, before anything is known


def growth(batch: int) -> float:
    """How much longer a level takes for a batch than for a few: a few share the rows that products take anyway."""
    return max(1.0, batch / FEW)


class ArmValues:
    """Records of all arms, and the prices of this machine."""

    def __init__(self, arms: Seq[Arm], costs: CostCache) -> None:
        self.arms, self.costs = list(arms), costs
        self.record = Record()  # of chains
        self.yields = Yields(TREE_PRIOR)  # of trees
        self.timings = {arm.name: DraftTiming(self._level(arm)) for arm in self.arms if not arm.free}
        self._sizes: dict[tuple[int, ...], DraftTiming] = {}  # of trees, by what they had to build on
        self._read: dict[int, int] = {}  # arm -> levels that it read this round
        self._token_seconds = {name: timing.level_seconds / TOKENS_A_LEVEL for name, timing in self.timings.items()}

    def _level(self, arm: Arm) -> float:
        """Seconds of a level before any was timed."""
        return self.costs.draft.get(arm.name, arm.draft_costs.level_seconds if arm.draft_costs is not None else 0.0)

    def seconds(self, sequence: Sequence, drafts: int, batch: int) -> float:
        """Its share of a pass over so many drafts of every sequence."""
        return self.costs.seconds(drafts + 1, len(sequence.tokens), batch) / batch

    def _share_of_level(self, i: int, batch: int) -> float:
        """Seconds of one sequence's part in a level of an arm with a model, if all draft together."""
        return self.timings[self.arms[i].name].level_seconds * growth(batch) / batch

    def look(self, i: int, sequence: Sequence, tokens: list[int], chance: float, batch: int) -> Offer | None:
        """A drafter that has looked something up, of whose first token it is so sure."""
        if not tokens:
            return None
        sure = sum(chance >= limit for limit in SURE)
        gains = self.record.gains(sequence.id, (i, sure), len(tokens), FREE_PRIORS[sure])
        count, rate = best_count(gains, lambda n: self.seconds(sequence, n, batch))
        return Offer(i, (i, sure), count, rate, tokens, sure, gains)

    def reading(self, i: int, tokens: int) -> float:
        """Seconds in which an arm with a model reads a prompt; a short one is nobody's concern."""
        return max(0, tokens - SHORT) * self._token_seconds[self.arms[i].name]

    def ask(
        self, i: int, sequence: Sequence, looked: Seq[Offer], fresh: bool, batch: int, unread: int = 0
    ) -> Offer | None:
        """A drafter with a model, beside what was looked up. A fresh one must first read what others wrote, and one
        that has never drafted for the sequence all of it."""
        arm = self.arms[i]
        length = min(arm.longest, sequence.budget.depth)
        if length <= 0 or len(sequence.tokens) >= arm.drafter.max_length:
            return None
        if arm.tree:
            return self._tree(i, sequence, length, looked, fresh, batch, unread)
        each, first = self._share_of_level(i, batch), self.reading(i, unread) / HORIZON
        gains = self.record.gains(sequence.id, (i, 0), length, PAID_PRIOR)
        rate, count = max(
            (tokens / (self.seconds(sequence, n, batch) + (n + fresh) * each + first), n)
            for n, tokens in enumerate(accumulate(gains, initial=1.0))
            if n  # what it is worth if it drafts at all
        )
        return Offer(i, (i, 0), count, rate, unread=unread)

    def _tree(
        self, i: int, sequence: Sequence, length: int, looked: Seq[Offer], fresh: bool, batch: int, unread: int
    ) -> Offer:
        arm, each = self.arms[i], self._share_of_level(i, batch)
        key = (i, 1 + max((offer.sure for offer in looked), default=-1) if arm.calibration is not None else 0)
        usual = self._sizes.get(key) or self.timings[arm.name]
        nodes, levels = (usual.nodes, usual.levels) if usual.rounds else (arm.drafter.nodes // 2, length)
        seconds = self.seconds(sequence, round(nodes), batch) + (min(levels, length) + fresh) * each
        seconds += self.reading(i, unread) / HORIZON
        return Offer(i, key, length, (1 + self.yields.expected(sequence.id, key)) / seconds, unread=unread)

    def gains_on_tree(self, sequence: int, offer: Offer, agreed: int) -> list[float]:
        """Chances of looked-up tokens, given what a head thinks of the first of them; keeps in mind what was asked."""
        offer.grafted = (*offer.key, agreed)
        prior = min(0.95, AGREED[agreed] * FREE_PRIORS[offer.sure])
        return self.record.gains(sequence, offer.grafted, len(offer.tokens), prior)

    def paying(self, i: int, sequence: Sequence, values: Seq[float], batch: int) -> int:
        """How many of a grown tree's nodes, the best first, to verify; what was read for them is paid for already."""
        spent = self._read[i] * self._share_of_level(i, batch)
        return best_count(values[: sequence.budget.nodes], lambda n: spent + self.seconds(sequence, n, batch))[0]

    def drafted(self, i: int, offers: Seq[Offer], seconds: float, levels: int, nodes: Seq[int]) -> None:
        """An arm with a model took so long to read so many levels for the nodes of each offer.

        A round in which it read a prompt as well says nothing about levels.
        """
        timing, unread = self.timings[self.arms[i].name], sum(offer.unread for offer in offers)
        first = unread > 0
        each = timing.level_seconds if first else seconds / max(levels, 1) / growth(len(offers))
        self._read[i] = levels
        if first and timing.rounds:
            rest = max(0.0, seconds - levels * timing.level_seconds * growth(len(offers))) / unread
            self._token_seconds[self.arms[i].name] += 0.3 * (rest - self._token_seconds[self.arms[i].name])
        if timing.rounds or not first:
            timing.follow(each, sum(nodes) / len(nodes), levels)
        draft_costs = self.arms[i].draft_costs
        if draft_costs is not None:
            draft_costs.level_seconds = timing.level_seconds
        for offer, count in zip(offers, nodes, strict=True):
            self._sizes.setdefault(offer.key, DraftTiming()).follow(each, count, levels)

    def learn(self, sequence: int, offers: Seq[Offer], chosen: Offer | None, wrote: Seq[int]) -> None:
        """The text that a round wrote says how far each offer was right, chosen or not."""
        for offer in offers:
            known = min(len(offer.tokens), len(wrote))
            right = next((j for j in range(known) if offer.tokens[j] != wrote[j]), known)
            for key in (offer.key, offer.grafted):
                if known and key is not None:
                    self.record.observe(sequence, key, known, right)
        if chosen is not None and not chosen.tokens:
            if self.arms[chosen.arm].tree:
                self.yields.observe(sequence, chosen.key, len(wrote) - 1)
            else:
                self.record.observe(sequence, chosen.key, chosen.count, min(len(wrote) - 1, chosen.count))
        for arm in self.arms:
            if arm.calibration is not None:
                arm.calibration.observe(sequence, wrote)

    def end(self, sequence: int) -> None:
        self.record.end(sequence)
        self.yields.end(sequence)
        for arm in self.arms:
            if arm.calibration is not None:
                arm.calibration.end(sequence)
