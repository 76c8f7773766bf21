"""The drafter that chooses among drafters, round by round and text by text, and drafts nothing where nothing pays.

Every choice maximises expected tokens per second: what a drafter's record promises, against what the machine's cost
model says the round takes. Drafters that cost nothing (they look things up) are asked every round and learn from every
round, whether chosen or not, unless a pass is as quick as a look; those with a model are tried now and then. Where a
head drafts a tree, what was looked up is grafted onto it, and of both as much is verified as pays. The choice looks at
the text, at what was drafted and at past rounds, never at the verifier's rng, and all drafts are CHOSEN: with
sample-and-match the target's distribution stays exact whatever is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from ...control.cost import CostModel, LiveCosts
from ...control.cost_cache import CostCache
from ...control.lookup_budget import PACE, Rest, shared_counts
from ...control.throughput_probe import DEAR, ThroughputProbe
from ...core.rng.keyed import Rng
from ...core.trees.builder import tightened
from ...core.trees.editing import cut, join, part
from ...core.trees.graft import NOBODY, Graft
from ...core.trees.layout import trees
from ...types import DraftBatch, Kind, Sequence, Topology
from ...types.drafts import empty_drafts
from ..base import Round
from .arm_values import ArmValues
from .arms import PLAIN, Arm, Offer, Tally, Watched
from .team import Team

__all__ = ["TRY_EVERY", "Arm", "AutoDrafter"]

TRY_EVERY = 24  # rounds after which a drafter with a model is tried again although it did not seem to pay
REACH = 1.5  # a new sequence tries it at once if so much more would make it the best; less for a dear trial
CROWD = 4  # sequences from which on drafts are shared out jointly
GRAFTED = "+lookup"  # behind the name of a head whose tree carried something that was looked up


class AutoDrafter(Team):
    """A drafter of drafters."""

    cost_aware = True

    def __init__(
        self,
        arms: Seq[Arm],
        costs: CostModel | LiveCosts | CostCache,
        name: str = "auto",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.arms, self.name, self._clock = list(arms), name, clock
        self.costs = costs if isinstance(costs, CostCache) else CostCache(costs)
        drafters = [arm.drafter for arm in self.arms]
        super().__init__(drafters)
        self.kinds = frozenset({Kind.CHOSEN})
        trees = any(d.topology is Topology.TREE for d in drafters)
        self.topology = Topology.TREE if trees else Topology.CHAIN
        self.nodes = max(d.nodes for d in drafters)
        self.bids = ArmValues(self.arms, self.costs)
        self.tallies: dict[str, Tally] = {}
        self._asked: tuple[float, tuple[int, ...]] | None = None  # when drafting ended, for whom
        self._watched: dict[int, Watched] = {}
        self._rest, self._pulse = Rest(), ThroughputProbe()
        self._own = self._spent = 0.0  # seconds of a round that we take ourselves; those of drafters with a model
        self._calls = self._batch = 0
        self._last_call: dict[int, int] = {}  # arm -> call of `propose` in which it drafted last, for whomever

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        for sequence in sequences:
            self._watched[sequence.id] = Watched(len(sequence.tokens), [], None)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        began, self._spent = self._clock(), 0.0
        rests = self._rest.holds(len(sequences))
        if (rests and len(sequences) >= CROWD) or self._is_vain(sequences, began):
            return self._skip(sequences)
        for sequence in sequences:
            self._learn(sequence)
        free = [] if rests else [i for i, arm in enumerate(self.arms) if arm.free]
        looked = {i: self.arms[i].drafter.propose(sequences, rng) for i in free}
        took = self._clock() - began
        chosen = [self._choose(b, sequence, looked, len(sequences)) for b, sequence in enumerate(sequences)]
        if len(sequences) >= CROWD:
            self._share(sequences, chosen, began)
        elif not rests:
            self._weigh(sequences, chosen, took)
        self._calls, self._batch = self._calls + 1, len(sequences)
        self._last_call |= {offer.arm: self._calls for offer in chosen if offer is not None}
        parts: list[tuple[list[int], DraftBatch]] = []
        for i, arm in enumerate(self.arms):
            who = [b for b, offer in enumerate(chosen) if offer is not None and offer.arm == i]
            offers = [offer for offer in chosen if offer is not None and offer.arm == i]
            if who and arm.free:
                parts.append((who, cut(part(looked[i], who), [offer.count for offer in offers])))
            elif who:
                mine, texts = rng.choose(torch.tensor(who)), [sequences[b] for b in who]
                drafts = self._timed(i, texts, offers, mine)
                parts.append((who, drafts if arm.calibration is None else self._grafted(i, texts, offers, drafts)))
        joined = _joined(parts, len(sequences))
        self._asked = self._clock(), tuple(sequence.id for sequence in sequences)
        self._own += PACE * (self._asked[0] - began - self._spent - self._own)
        return joined

    def _is_vain(self, sequences: Seq[Sequence], now: float) -> bool:
        """Whether a lone sequence does better without drafts, by the clock: asked where our own work costs much."""
        if len(sequences) > 1 or self._own <= DEAR * self.costs.seconds(1, len(sequences[0].tokens)):
            self._pulse.last = None
            return False
        wrote = len(sequences[0].tokens) - self._watched[sequences[0].id].length
        return self._pulse.rests(now, wrote)

    def _weigh(self, sequences: Seq[Sequence], chosen: list[Offer | None], took: float) -> None:
        """Where a pass is so quick that looking takes a fair part of it, looking must earn its time, or rest."""
        batch = len(sequences)
        context = sum(len(sequence.tokens) for sequence in sequences) / batch
        plain = self.costs.seconds(1, context, batch)
        known = all(offer is None or offer.tokens for offer in chosen)  # what heads draft is not, and may carry it
        if known and took > DEAR * plain:
            found = [offer for offer in chosen if offer is not None and offer.tokens]
            gained = sum(sum(offer.gains[: offer.count]) for offer in found)
            drafting = self.costs.seconds(1 + sum(offer.count for offer in found) / batch, context, batch)
            self._rest.looked(batch, took, gained, plain, drafting)

    def _skip(self, sequences: Seq[Sequence]) -> DraftBatch:
        """A round in which nobody even looks."""
        for sequence in sequences:
            watched = self._watched[sequence.id]
            if watched.offers:
                self._learn(sequence)
            watched.length, watched.chosen = len(sequence.tokens), None
        self._calls += 1
        self._asked = self._clock(), tuple(sequence.id for sequence in sequences)
        return empty_drafts(len(sequences))

    def _share(self, sequences: Seq[Sequence], chosen: list[Offer | None], began: float) -> None:
        """Cut what was looked up for a crowd to what pays for all of them together."""
        batch = len(sequences)
        context = sum(len(sequence.tokens) for sequence in sequences) / batch
        plain, alone = self.costs.seconds(1, context, batch), self.costs.seconds(batch, context)
        free = [offer if offer is not None and offer.tokens else None for offer in chosen]

        def seconds(drafts: int) -> float:  # rows of all sequences go through the same tiles
            return plain + self.costs.seconds(batch + drafts, context) - alone

        counts, gained = shared_counts([[] if o is None else o.gains[: o.count] for o in free], seconds)
        for b, (offer, count) in enumerate(zip(free, counts, strict=True)):
            if offer is not None:
                offer.count = count
                chosen[b] = self._watched[sequences[b].id].chosen = offer if count else None
        if all(offer is None or offer.tokens for offer in chosen):  # what heads draft is not known yet
            self._rest.looked(batch, self._clock() - began, gained, plain, seconds(sum(counts)))

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
            self.bids.end(sequence.id)
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
        for name, timing in self.bids.timings.items():
            seconds = timing.level_seconds
            lines.append(f"{name}: {seconds * 1e3:.2f} ms a level of drafts, {seconds * plain:.1%} of a plain step")
        return lines

    def _choose(self, b: int, sequence: Sequence, looked: dict[int, DraftBatch], batch: int) -> Offer | None:
        """The offer that promises most; None = plain decoding."""
        watched = self._watched[sequence.id]
        offers = [
            offer
            for i, drafts in looked.items()
            if (offer := self.bids.look(i, sequence, *_chain(drafts, b), batch)) is not None
        ]
        free = tuple(offers)
        for i, arm in enumerate(self.arms):
            fresh = watched.last_try.get(i) != watched.rounds
            unread = 0 if i in watched.last_try else len(sequence.tokens)
            if not arm.free and (offer := self.bids.ask(i, sequence, free, fresh, batch, unread)) is not None:
                offers.append(offer)
        best = max((o for o in offers if o.count > 0), key=lambda o: o.rate, default=None)
        plain = 1 / self.bids.seconds(sequence, 0, batch)
        if best is not None and best.rate <= plain:
            best = None
        best = self._trial(watched, offers, best, plain, batch) or best
        watched.length, watched.offers, watched.chosen = len(sequence.tokens), offers, best
        watched.rounds += 1
        if best is not None:
            watched.last_try[best.arm] = watched.rounds
        return best

    def _trial(
        self, watched: Watched, offers: list[Offer], best: Offer | None, plain: float, batch: int
    ) -> Offer | None:
        """An arm with a model that is to be tried although it does not seem to pay: seldom, and less often each time.

        A level takes about as long for one sequence as for all. So sequences that run side by side try an arm in the
        same round, and none does because it has just begun. One that runs alone tries it at its beginning, unless
        others have shown of late that it is out of reach.
        """
        aim = max(plain, best.rate if best is not None else 0.0)
        for offer in offers:
            i = offer.arm
            if offer is best:
                watched.trials[i] = 0
            if offer is best or self.arms[i].free:
                continue
            price = self.bids.reading(i, offer.unread) * plain / batch  # of a trial, in plain passes
            pause = (1 + price) * (TRY_EVERY << min(watched.trials.get(i, 0), 4))
            idle = self._calls - self._last_call.get(i, -2 * TRY_EVERY)
            reach = 1 + (REACH - 1) / (1 + price)
            near = offer.rate * reach >= aim or (batch < CROWD and idle >= 2 * TRY_EVERY * (1 + price))
            if batch >= CROWD and not near:  # what it would cost all of them is known well enough
                continue
            due = watched.rounds - watched.last_try.get(i, -pause if near else 0) >= pause
            if due and (batch == 1 or idle >= TRY_EVERY):
                watched.trials[i] = watched.trials.get(i, 0) + 1
                offer.count = max(offer.count, min(2, self.arms[i].longest))
                return offer
        return None

    def _timed(self, index: int, sequences: list[Sequence], offers: list[Offer], rng: Rng) -> DraftBatch:
        """Let a drafter with a model draft as deep as was offered, and note what it did and how long it took."""
        begin = self._clock()
        drafts = self.ask(index, sequences, rng, depths=[offer.count for offer in offers])
        read, drafts = drafts.levels, tightened(drafts)
        if read:
            depth = (drafts.depth * drafts.used()).amax(dim=1).tolist() if drafts.width else [0] * len(offers)
            for offer, deepest in zip(offers, depth, strict=True):
                offer.count = int(deepest)
            self.bids.drafted(index, offers, self._clock() - begin, read, drafts.lengths())
        self._spent += self._clock() - begin
        return drafts

    def _grafted(self, index: int, sequences: list[Sequence], offers: list[Offer], drafts: DraftBatch) -> DraftBatch:
        """What was looked up for the same sequences, grafted onto a head's trees; of both as much as pays."""
        looked = [[o for o in self._watched[s.id].offers if o.tokens] for s in sequences]
        if not any(looked):
            return drafts
        grown = []
        for sequence, offer, found, tree in zip(sequences, offers, looked, _on_host(drafts), strict=True):
            agreed = [tree.agrees(other.tokens[0]) for other in found]
            for other, says in zip(found, agreed, strict=True):
                tree.add(other.tokens, self.bids.gains_on_tree(sequence.id, other, says))
            tree = tree.best(self.bids.paying(index, sequence, tree.falling(), self._batch))
            offer.grafts = NOBODY in tree.source
            grown.append(tree)
        return _on_device(grown, drafts.token.device)

    def _learn(self, sequence: Sequence) -> None:
        """The text says what became of the last round."""
        watched = self._watched[sequence.id]
        wrote = sequence.tokens[watched.length :]
        if not wrote:
            return
        chosen = watched.chosen
        self.bids.learn(sequence.id, watched.offers, chosen, wrote)
        name = PLAIN if chosen is None else self.arms[chosen.arm].name + GRAFTED * chosen.grafts
        tally = self.tallies.setdefault(name, Tally())
        tally.rounds += 1
        tally.tokens += len(wrote)
        if chosen is not None:
            tally.drafted += chosen.count
            tally.promised += chosen.rate
        watched.offers, watched.chosen, watched.length = [], None, len(sequence.tokens)


def _chain(drafts: DraftBatch, b: int) -> tuple[list[int], float]:
    """What was looked up for a sequence, and how sure its drafter is of the first token."""
    length = drafts.lengths()[b]
    sure = float(drafts.value[b, 0]) if length and drafts.value is not None else 0.0
    return drafts.token[b, :length].tolist(), sure


def _on_host(drafts: DraftBatch) -> list[Graft]:
    if not drafts.width:
        return [Graft([], [], [], []) for _ in range(drafts.batch)]
    assert drafts.value is not None and drafts.source is not None
    token, parent, source = torch.stack((drafts.token, drafts.parent, drafts.source)).tolist()
    columns = zip(token, parent, drafts.value.tolist(), source, drafts.lengths(), strict=True)
    return [Graft(t[:n], p[:n], v[:n], s[:n]) for t, p, v, s, n in columns]


def _on_device(grown: list[Graft], device: torch.device) -> DraftBatch:
    drafts = trees([(tree.token, tree.parent) for tree in grown], device=device)
    source = [tree.source + [NOBODY] * (drafts.width - len(tree.source)) for tree in grown]
    return replace(drafts, source=torch.tensor(source, dtype=torch.int64, device=device).view_as(drafts.token))


def _joined(parts: list[tuple[list[int], DraftBatch]], batch: int) -> DraftBatch:
    if not parts:
        return empty_drafts(batch)
    return join([(who, replace(drafts, kind=Kind.CHOSEN, distributions=None)) for who, drafts in parts], batch)
