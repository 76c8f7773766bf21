"""The drafter that chooses among drafters, round by round and text by text, and drafts nothing where nothing pays.

Every choice maximises expected tokens per second: what a drafter's record promises at each length, against what the
machine's cost model says the round takes. Drafters that cost nothing (they look things up) are asked every round and
learn from every round, whether chosen or not; those with a model are tried now and then. The choice looks at the text,
at what was drafted and at past rounds, never at the verifier's dice, and all drafts are CHOSEN: with sample-and-match
the target's law stays exact whatever is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import torch

from ..core.bandit import Record
from ..core.cost import CostModel, LiveCosts, best_count
from ..core.cost_tree import Tariff
from ..core.dice import Dice
from ..core.habit import Habit
from ..core.pool import tightened
from ..core.surgery import cut, join, part
from ..types import DraftBatch, Kind, Sequence, Topology
from ..types.drafts import empty_drafts
from .base import Drafter, Round
from .team import Team

SURE = (0.3, 0.55, 0.8)  # a drafter's own chance for its first token, by which its record is kept apart
FREE_PRIORS, PAID_PRIOR = (0.2, 0.4, 0.6, 0.8), 0.6  # chance of a drafted token before anything is known
TRY_EVERY = 24  # rounds after which a drafter with a model is tried again although it did not seem to pay
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter among others. `longest` = 0: it looks things up for nothing. A tree finds its size itself."""

    drafter: Drafter
    longest: int = 0  # tokens ahead that a drafter with a model may draft
    tariff: Tariff | None = None  # by which it sizes its trees: told what its levels really take

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def free(self) -> bool:
        return self.longest == 0


@dataclass(slots=True)
class Offer:
    """What an arm would do for a sequence this round."""

    arm: int
    key: tuple[int, int]
    count: int  # drafts along the path
    rate: float  # expected tokens per second
    tokens: list[int] = field(default_factory=list)  # of arms that have drafted already


@dataclass(slots=True)
class Watched:
    """What a sequence's last round was about, until its outcome is known from the text."""

    length: int
    offers: list[Offer]
    chosen: Offer | None
    rounds: int = 0
    last_try: dict[int, int] = field(default_factory=dict)  # arm -> round in which it drafted last


@dataclass(slots=True)
class Tally:
    """What became of the rounds that an arm was chosen for."""

    rounds: int = 0
    drafted: int = 0
    tokens: int = 0
    promised: float = 0.0  # tokens per second, summed


class AutoDrafter(Team):
    """A drafter of drafters."""

    weighs_costs = True

    def __init__(
        self,
        arms: Seq[Arm],
        costs: CostModel | LiveCosts,
        name: str = "auto",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.arms, self.name, self._clock = list(arms), name, clock
        self.costs = costs if isinstance(costs, LiveCosts) else LiveCosts(costs)
        drafters = [arm.drafter for arm in self.arms]
        super().__init__(drafters)
        self.kinds = frozenset({Kind.CHOSEN})
        trees = any(d.topology is Topology.TREE for d in drafters)
        self.topology = Topology.TREE if trees else Topology.CHAIN
        self.nodes = max(d.nodes for d in drafters)
        self.record = Record()
        self.tallies: dict[str, Tally] = {}
        self._habits = {arm.name: Habit(costs.draft.get(arm.name, 0.0)) for arm in self.arms if not arm.free}
        self._asked: tuple[float, tuple[int, ...]] | None = None  # when drafting ended, for whom
        self._watched: dict[int, Watched] = {}
        self._calls = 0
        self._last_call: dict[int, int] = {}  # arm -> call of `propose` in which it drafted last, for whomever

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        for sequence in sequences:
            self._watched[sequence.id] = Watched(len(sequence.tokens), [], None)

    def propose(self, sequences: Seq[Sequence], dice: Dice) -> DraftBatch:
        for sequence in sequences:
            self._learn(sequence)
        looked = {i: arm.drafter.propose(sequences, dice) for i, arm in enumerate(self.arms) if arm.free}
        chosen = [self._choose(b, sequence, looked, len(sequences)) for b, sequence in enumerate(sequences)]
        self._calls += 1
        self._last_call |= {offer.arm: self._calls for offer in chosen if offer is not None}
        parts: list[tuple[list[int], DraftBatch]] = []
        for i, arm in enumerate(self.arms):
            who = [b for b, offer in enumerate(chosen) if offer is not None and offer.arm == i]
            offers = [offer for offer in chosen if offer is not None and offer.arm == i]
            if who and arm.free:
                parts.append((who, cut(part(looked[i], who), [offer.count for offer in offers])))
            elif who:
                mine = dice.choose(torch.tensor(who))
                parts.append((who, self._timed(i, [sequences[b] for b in who], offers, mine)))
        self._asked = self._clock(), tuple(sequence.id for sequence in sequences)
        return _joined(parts, len(sequences))

    def observe(self, round: Round) -> None:
        """Each sequence's nodes were numbered by the one who drafted them; the others have read none."""
        asked, self._asked = self._asked, None
        if asked is not None and asked[1] == tuple(sequence.id for sequence in round.sequences):
            batch = len(round.sequences)  # all that drafted were verified together: their pass can be timed
            rows = 1 + sum(round.drafts.lengths()) / batch
            context = sum(len(sequence.tokens) for sequence in round.sequences) / batch
            self.costs.observe(rows, context, batch, self._clock() - asked[0])
        for member in self.members:
            member.observe(round)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if self._watched.get(sequence.id) is not None:
                self._learn(sequence)
            self._watched.pop(sequence.id, None)
            self.record.end(sequence.id)
        super().end(sequences)

    def explain(self) -> list[str]:
        """Which choices were made so far, and what came of them, a line each."""
        rounds = sum(tally.rounds for tally in self.tallies.values())
        plain = 1 / self.costs.seconds(1)
        lines = []
        for name, tally in sorted(self.tallies.items(), key=lambda item: -item[1].rounds):
            line = f"{name}: {tally.rounds} of {rounds} rounds, {tally.tokens / tally.rounds:.2f} tokens each"
            if tally.drafted:
                promise = tally.promised / tally.rounds / plain
                line += f", {tally.drafted / tally.rounds:.1f} drafted; promised {promise:.2f}x plain decoding"
            lines.append(line)
        for name, habit in self._habits.items():
            seconds = habit.level_seconds
            lines.append(f"{name}: {seconds * 1e3:.2f} ms a level of drafts, {seconds * plain:.1%} of a plain step")
        return lines

    def _choose(self, b: int, sequence: Sequence, looked: dict[int, DraftBatch], batch: int) -> Offer | None:
        """The offer that promises most; None = plain decoding."""
        watched = self._watched[sequence.id]
        offers = []
        for i, arm in enumerate(self.arms):
            offer = self._look(i, b, sequence, looked[i], batch) if arm.free else self._bid(i, sequence, batch)
            if offer is not None:
                offers.append(offer)
        best = max((o for o in offers if o.count > 0), key=lambda o: o.rate, default=None)
        if best is not None and best.rate <= 1 / self._seconds(sequence, 0, batch):
            best = None
        watched.length, watched.offers, watched.chosen = len(sequence.tokens), offers, best
        watched.rounds += 1
        if best is not None:
            watched.last_try[best.arm] = watched.rounds
        return best

    def _look(self, i: int, b: int, sequence: Sequence, drafts: DraftBatch, batch: int) -> Offer | None:
        """What a drafter that has looked something up is worth."""
        length = drafts.lengths()[b]
        if length == 0:
            return None
        sure = 0 if drafts.value is None else sum(float(drafts.value[b, 0]) >= limit for limit in SURE)
        gains = self.record.gains(sequence.id, (i, sure), length, FREE_PRIORS[sure])
        count, rate = best_count(gains, lambda n: self._seconds(sequence, n, batch))
        return Offer(i, (i, sure), count, rate, drafts.token[b, :length].tolist())

    def _bid(self, i: int, sequence: Sequence, batch: int) -> Offer | None:
        """What a drafter with a model would be worth. One that has not drafted for long is tried on trust."""
        arm, watched = self.arms[i], self._watched[sequence.id]
        length = min(arm.longest, sequence.budget.depth)
        if length <= 0 or len(sequence.tokens) >= arm.drafter.max_length:
            return None
        gains = self.record.gains(sequence.id, (i, 0), length, PAID_PRIOR)
        habit, tree = self._habits[arm.name], arm.drafter.topology is Topology.TREE
        each = habit.level_seconds / batch
        catch_up = each if watched.last_try.get(i) != watched.rounds else 0.0  # it must read what others wrote
        if tree:
            levels = min(length, round(habit.levels) or length)
            nodes = round(habit.nodes) if habit.rounds else arm.drafter.nodes // 2
            seconds = self._seconds(sequence, nodes, batch) + levels * each + catch_up
            count, rate = length, (1 + sum(gains[:levels])) / seconds
        else:
            count, rate = best_count(
                gains, lambda n: self._seconds(sequence, n, batch) + (n * each + catch_up if n else 0.0)
            )
        if self._is_due(i, watched, batch):
            count, rate = max(count, min(2, length)), max(rate, 1.001 / self._seconds(sequence, 0, batch))
        return Offer(i, (i, 0), count, rate)

    def _is_due(self, i: int, watched: Watched, batch: int) -> bool:
        """Whether an arm is to be tried although it does not seem to pay.

        A level takes about as long for one sequence as for all. So sequences that run side by side try an arm in the
        same round, and none does because it has just begun.
        """
        due = watched.rounds - watched.last_try.get(i, -TRY_EVERY) >= TRY_EVERY
        return due and (batch == 1 or self._calls - self._last_call.get(i, -TRY_EVERY) >= TRY_EVERY)

    def _timed(self, index: int, sequences: list[Sequence], offers: list[Offer], dice: Dice) -> DraftBatch:
        """Let a drafter with a model draft as deep as was offered, and note what it did and how long it took."""
        arm, begin = self.arms[index], self._clock()
        drafts = tightened(self.ask(index, sequences, dice, depths=[offer.count for offer in offers]))
        seconds = self._clock() - begin
        if drafts.width:
            for b, offer in enumerate(offers):
                offer.count = int((drafts.depth[b] * drafts.used()[b]).amax())
            habit = self._habits[arm.name]
            habit.follow(seconds / max(drafts.levels, 1), sum(drafts.lengths()) / len(offers), drafts.levels)
            if arm.tariff is not None:
                arm.tariff.level_seconds = habit.level_seconds
        return drafts

    def _learn(self, sequence: Sequence) -> None:
        """The text that the last round wrote says how far each offer was right, chosen or not."""
        watched = self._watched[sequence.id]
        wrote = sequence.tokens[watched.length :]
        if not wrote:
            return
        for offer in watched.offers:
            if offer.tokens:
                known = min(len(offer.tokens), len(wrote))
                right = next((j for j in range(known) if offer.tokens[j] != wrote[j]), known)
                self.record.observe(sequence.id, offer.key, known, right)
            elif offer is watched.chosen:
                self.record.observe(sequence.id, offer.key, offer.count, min(len(wrote) - 1, offer.count))
        name = PLAIN if watched.chosen is None else self.arms[watched.chosen.arm].name
        tally = self.tallies.setdefault(name, Tally())
        tally.rounds += 1
        tally.tokens += len(wrote)
        if watched.chosen is not None:
            tally.drafted += watched.chosen.count
            tally.promised += watched.chosen.rate
        watched.offers, watched.chosen, watched.length = [], None, len(sequence.tokens)

    def _seconds(self, sequence: Sequence, drafts: int, batch: int) -> float:
        return self.costs.seconds(drafts + 1, len(sequence.tokens), batch) / batch


def _joined(parts: list[tuple[list[int], DraftBatch]], batch: int) -> DraftBatch:
    if not parts:
        return empty_drafts(batch)
    return join([(who, replace(drafts, kind=Kind.CHOSEN, laws=None)) for who, drafts in parts], batch)
