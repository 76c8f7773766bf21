"""The drafter that chooses among drafters, round by round and text by text, and drafts nothing where nothing pays.

Every choice maximises expected tokens per second (`control.objective`). Lookups cost nothing, so they are asked every
round and learn from every round, chosen or not, unless a pass is as fast as a lookup; drafters with a model are tried
now and then. Where a head drafts a tree, lookups are grafted onto it, and of both as much is verified as pays. The
choice depends on the text, on drafts and on past rounds, never on the verifier's random numbers, and all drafts are
CHOSEN: with sample-and-match the target's distribution stays exact whatever is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from ...control.constants import EMA_RATE, HOST_SHARE, REACH, SMALL_BATCH, TRY_EVERY
from ...control.cost import CostModel, Costs
from ...control.lookup_worth import LookupWorth
from ...control.objective import best_counts, rate
from ...control.throughput_probe import LookupRest, QuietLoad, ThroughputProbe
from ...core.rng.keyed import Rng
from ...core.trees.builder import tightened
from ...core.trees.editing import join
from ...core.trees.graft import NOBODY, Graft
from ...core.trees.layout import trees
from ...errors import UsageError
from ...types import DraftBatch, Kind, Sequence, Topology
from ...types.drafts import chains, empty_drafts
from ..base import Drafter, Round
from ..lookup import Looked, Lookup
from .arm_values import ArmValues
from .arms import PLAIN, Arm, Candidate, SequenceState, Tally
from .team import Team, mean_length

__all__ = ["Arm", "AutoDrafter"]

WITH_LOOKUP = "+lookup"  # after the name of a head whose tree carried a lookup


class AutoDrafter(Team):
    """A drafter of drafters."""

    cost_aware = True

    def __init__(
        self,
        arms: Seq[Arm],
        costs: CostModel | Costs,
        name: str = "auto",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.arms, self.name, self._clock = list(arms), name, clock
        self._free = {i: _lookup(arm.drafter) for i, arm in enumerate(self.arms) if arm.free}
        self.costs = costs if isinstance(costs, Costs) else Costs(costs)
        drafters = [arm.drafter for arm in self.arms]
        super().__init__(drafters)
        self.kinds = frozenset({Kind.CHOSEN})
        trees = any(d.topology is Topology.TREE for d in drafters)
        self.topology = Topology.TREE if trees else Topology.CHAIN
        self.nodes = max(d.nodes for d in drafters)
        self.values = ArmValues(self.arms, self.costs)
        self.tallies: dict[str, Tally] = {}
        self._drafted: tuple[float, tuple[int, ...]] | None = None  # when drafting ended, for which sequences
        self._states: dict[int, SequenceState] = {}
        self._lookups, self._probe, self._worth = LookupRest(), ThroughputProbe(), LookupWorth()
        self._quiet = QuietLoad()
        self._host = self._models = 0.0  # seconds of a round spent on choosing (an EMA); on drafters with a model
        self._calls = self._batch = 0
        self._last_call: dict[int, int] = {}  # arm -> call of `propose` in which it drafted last for any sequence

    def declines(self, sequence: Sequence, running: int) -> bool:
        """Where nothing has paid beside so many for long: even to listen takes a fair part of a fast pass."""
        return self._quiet.covers(running, self._clock())

    def _pass_of(self, sequences: Seq[Sequence]) -> int:
        """Texts of the pass that verifies theirs."""
        return len(sequences) + self.beside

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        for sequence in sequences:
            self._states[sequence.id] = SequenceState(len(sequence.tokens))

    def rests(self, sequences: Seq[Sequence]) -> bool:
        """In a large batch as long as lookups do, with trials of heads between two rests; alone where plain decoding is
        faster by the clock."""
        if (batch := self._pass_of(sequences)) >= SMALL_BATCH:
            rests = self._lookups.rests(batch)
        else:
            rests = self._plain_is_faster(sequences, self._clock())
        if rests:
            self._skip(sequences)
        return rests

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        began, self._models, batch = self._clock(), 0.0, self._pass_of(sequences)
        rests = batch < SMALL_BATCH and self._lookups.rests(batch)
        for sequence in sequences:
            self._learn(sequence)
        found = [{} if rests else self._look_up(sequence, batch) for sequence in sequences]
        took = self._clock() - began
        chosen = [self._choose(*each, batch) for each in zip(sequences, found, strict=True)]
        if batch >= SMALL_BATCH:
            self._share(sequences, chosen, began)
        elif not rests:
            self._weigh(sequences, chosen, took)
        self._calls, self._batch = self._calls + 1, batch
        self._last_call |= {candidate.arm: self._calls for candidate in chosen if candidate is not None}
        drafts = self._draft(sequences, chosen, rng)
        self._drafted = self._clock(), tuple(sequence.id for sequence in sequences)
        self._host += EMA_RATE * (self._drafted[0] - began - self._models - self._host)
        return drafts

    def _look_up(self, sequence: Sequence, batch: int) -> dict[int, Looked]:
        """What each lookup that is worth its time has found: arm -> tokens and chances."""
        found, state, plain = {}, self._states[sequence.id], self.values.seconds(sequence, 0, batch)
        for i, lookup in self._free.items():
            if self._worth.asks(sequence.id, i, plain):
                began = self._clock()
                found[i] = lookup.look_up(sequence)
                self._worth.took(i, self._clock() - began)
                state.asked.append(i)
        return found

    def _draft(self, sequences: Seq[Sequence], chosen: list[Candidate | None], rng: Rng) -> DraftBatch:
        """What was chosen, lookups' drafts and then arm by arm, joined in one batch."""
        parts: list[tuple[list[int], DraftBatch]] = []
        if any(candidate is not None and candidate.tokens for candidate in chosen):
            copies = [[] if candidate is None else candidate.tokens[: candidate.count] for candidate in chosen]
            who = [b for b, tokens in enumerate(copies) if tokens]
            parts.append((who, chains([copies[b] for b in who])))
        for i, arm in enumerate(self.arms):
            own = [(b, candidate) for b, candidate in enumerate(chosen) if candidate is not None and candidate.arm == i]
            if arm.free or not own:
                continue
            who, candidates = [b for b, _ in own], [candidate for _, candidate in own]
            texts = [sequences[b] for b in who]
            drafts = self._timed(i, texts, candidates, rng.choose(torch.tensor(who)))
            if arm.calibration is not None:
                drafts = self._grafted(i, texts, candidates, drafts)
            parts.append((who, drafts))
        return _joined(parts, len(sequences))

    def _plain_is_faster(self, sequences: Seq[Sequence], now: float) -> bool:
        """Whether a lone sequence is faster without drafts, by the clock: asked where choosing takes long."""
        if self._pass_of(sequences) > 1 or self._host <= HOST_SHARE * self.costs.seconds(1, len(sequences[0].tokens)):
            self._probe.last = None
            return False
        wrote = len(sequences[0].tokens) - self._states[sequences[0].id].length
        return self._probe.rests(now, wrote)

    def _weigh(self, sequences: Seq[Sequence], chosen: list[Candidate | None], took: float) -> None:
        """Where a pass is so fast that lookups take a fair part of it, they must earn their time, or rest."""
        batch, context = self._pass_of(sequences), mean_length(sequences)
        plain = self.costs.seconds(1, context, batch)
        if _only_lookups(chosen) and took > HOST_SHARE * plain:
            found = [candidate for candidate in chosen if candidate is not None]
            accepted = sum(sum(candidate.gains[: candidate.count]) for candidate in found)
            drafting = self.costs.seconds(1 + sum(candidate.count for candidate in found) / batch, context, batch)
            self._lookups.observe(batch, took, accepted, plain, drafting)

    def _share(self, sequences: Seq[Sequence], chosen: list[Candidate | None], began: float) -> None:
        """Cut the lookups of a large batch to what pays for all of them together."""
        batch, context = self._pass_of(sequences), mean_length(sequences)
        plain, alone = self.costs.seconds(1, context, batch), self.costs.seconds(batch, context)
        free = [candidate if candidate is not None and candidate.tokens else None for candidate in chosen]

        def seconds(drafts: int) -> float:  # rows of all sequences go through the same tiles
            return plain + self.costs.seconds(batch + drafts, context) - alone

        counts, accepted = best_counts([[] if c is None else c.gains[: c.count] for c in free], seconds)
        for b, (candidate, count) in enumerate(zip(free, counts, strict=True)):
            if candidate is not None:
                candidate.count = count
                chosen[b] = self._states[sequences[b].id].chosen = candidate if count else None
        if _only_lookups(chosen):
            self._lookups.observe(batch, self._clock() - began, accepted, plain, seconds(sum(counts)))
        if any(c is not None and c.rate > rate(0.0, plain / batch) for c in chosen):  # else it is a trial
            self._quiet.paid(batch)
        else:
            self._quiet.failed(batch, self._lookups.fruitless, self._clock())

    def _skip(self, sequences: Seq[Sequence]) -> None:
        """A round without even a lookup."""
        for sequence in sequences:
            state = self._states[sequence.id]
            if state.candidates or state.asked:
                self._learn(sequence)
            plain, wrote = self.tallies.setdefault(PLAIN, Tally()), len(sequence.tokens) - state.length
            plain.rounds, plain.tokens = plain.rounds + bool(wrote), plain.tokens + wrote
            state.length, state.chosen = len(sequence.tokens), None
        self._calls += 1
        self._drafted = self._clock(), tuple(sequence.id for sequence in sequences)

    def observe(self, round: Round) -> None:
        """Each sequence's nodes were numbered by the arm that drafted them; the others have read none."""
        drafted, self._drafted = self._drafted, None
        if drafted is not None and not round.early and drafted[1] == tuple(sequence.id for sequence in round.sequences):
            batch = self._pass_of(round.sequences)  # all were verified together: their pass can be timed
            rows = 1 + sum(round.drafts.lengths()) / batch
            self.costs.observe(rows, mean_length(round.sequences), batch, self._clock() - drafted[0])
        for member in self.members:
            member.observe(round)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if sequence.id in self._states:
                self._learn(sequence)
            self._states.pop(sequence.id, None)
            self.values.end(sequence.id)
            self._worth.end(sequence.id)
        super().end(sequences)

    def explain(self) -> list[str]:
        rounds = sum(tally.rounds for tally in self.tallies.values())
        plain = rate(0.0, self.costs.seconds(1))
        lines = []
        for name, tally in sorted(self.tallies.items(), key=lambda item: -item[1].rounds):
            line = f"{name}: {tally.rounds} of {rounds} rounds, {tally.tokens / tally.rounds:.2f} tokens each"
            if tally.drafted:
                expected = tally.promised / tally.rounds / plain
                line += f", {tally.drafted / tally.rounds:.1f} drafted; promised {expected:.2f}x plain decoding"
            lines.append(line)
        for i, arm in enumerate(self.arms):
            if arm.free and self._worth.seconds(i):
                lines.append(f"{arm.name}: a look-up takes {self._worth.seconds(i) * 1e6:.0f} us")
        for name, timing in self.values.timings.items():
            first, more = 1e3 * timing.first_seconds, 1e3 * timing.level_seconds
            lines.append(f"{name}: the first level of drafts takes {first:.2f} ms, each further one {more:.2f} ms")
        return lines

    def _choose(self, sequence: Sequence, found: dict[int, Looked], batch: int) -> Candidate | None:
        """The candidate with the highest rate; None = plain decoding."""
        state = self._states[sequence.id]
        candidates = [self.values.of_lookup(i, sequence, *each, batch) for i, each in found.items() if each[0]]
        lookups = tuple(candidates)
        for i, arm in enumerate(self.arms):
            fresh = arm.drafter.reads_text and state.last_try.get(i) != state.rounds
            unread = len(sequence.tokens) if arm.drafter.reads_text and i not in state.last_try else 0
            if not arm.free and (one := self.values.of_model(i, sequence, lookups, fresh, batch, unread)) is not None:
                candidates.append(one)
        best = max((c for c in candidates if c.count > 0), key=lambda c: c.rate, default=None)
        plain = rate(0.0, self.values.seconds(sequence, 0, batch))
        if best is not None and best.rate <= plain:
            best = None
        best = self._trial(state, candidates, best, plain, batch) or best
        state.length, state.candidates, state.chosen = len(sequence.tokens), candidates, best
        state.rounds += 1
        if best is not None:
            state.last_try[best.arm] = state.rounds
        return best

    def _trial(
        self, state: SequenceState, candidates: list[Candidate], best: Candidate | None, plain: float, batch: int
    ) -> Candidate | None:
        """An arm with a model that is to be tried although it does not seem to pay: seldom, and less often each time.

        A level takes about as long for one sequence as for all. So sequences that run side by side try an arm in the
        same round, and none does because it has just begun. One that runs alone tries it at its beginning, unless
        others have shown of late that it is out of reach.
        """
        aim = max(plain, best.rate if best is not None else 0.0)
        for candidate in candidates:
            i = candidate.arm
            if candidate is best:
                state.trials(i).reset()
            if candidate is best or self.arms[i].free:
                continue
            price = self.values.reading(i, candidate.unread) * plain / batch  # of a trial, in plain passes
            pause = (1 + price) * state.trials(i).span
            idle = self._calls - self._last_call.get(i, -2 * TRY_EVERY)
            reach = 1 + (REACH - 1) / (1 + price)
            near = candidate.rate * reach >= aim or (batch < SMALL_BATCH and idle >= 2 * TRY_EVERY * (1 + price))
            if batch >= SMALL_BATCH and not near:  # what it would cost all of them is known well enough
                continue
            due = state.rounds - state.last_try.get(i, -pause if near else 0) >= pause
            if due and (batch == 1 or idle >= TRY_EVERY):
                state.trials(i).start()
                candidate.count = max(candidate.count, min(2, self.arms[i].longest))
                return candidate
        return None

    def _timed(self, index: int, sequences: list[Sequence], candidates: list[Candidate], rng: Rng) -> DraftBatch:
        """Let a drafter with a model draft to the chosen depths, and note what it did and how long it took."""
        begin = self._clock()
        drafts = self.ask(index, sequences, rng, depths=[candidate.count for candidate in candidates])
        read, drafts = drafts.levels, tightened(drafts)
        if read:
            depth = (drafts.depth * drafts.used()).amax(dim=1).tolist() if drafts.width else [0] * len(candidates)
            for candidate, deepest in zip(candidates, depth, strict=True):
                candidate.count = int(deepest)
            self.values.drafted(index, candidates, self._clock() - begin, read, drafts.lengths())
        self._models += self._clock() - begin
        return drafts

    def _grafted(
        self, index: int, sequences: list[Sequence], candidates: list[Candidate], drafts: DraftBatch
    ) -> DraftBatch:
        """Lookups for the same sequences, grafted onto a head's trees; of both as much as pays."""
        lookups = [[c for c in self._states[s.id].candidates if c.tokens] for s in sequences]
        if not any(lookups):
            return drafts
        grown = []
        for sequence, candidate, found, tree in zip(sequences, candidates, lookups, _on_host(drafts), strict=True):
            agreement = [tree.agrees(lookup.tokens[0]) for lookup in found]
            for lookup, agrees in zip(found, agreement, strict=True):
                tree.add(lookup.tokens, self.values.gains_on_tree(sequence.id, lookup, agrees))
            tree = tree.best(self.values.paying(index, sequence, tree.falling(), self._batch))
            candidate.has_lookup = NOBODY in tree.source
            grown.append(tree)
        return _on_device(grown, drafts.token.device)

    def _learn(self, sequence: Sequence) -> None:
        """The text shows what became of the last round."""
        state = self._states[sequence.id]
        wrote = sequence.tokens[state.length :]
        if not wrote:
            return
        chosen = state.chosen
        right = self.values.learn(sequence.id, state.candidates, chosen, wrote)
        self._worth.observe(sequence.id, {i: right.get(i, 0) for i in state.asked})
        name = PLAIN if chosen is None else self.arms[chosen.arm].name + WITH_LOOKUP * chosen.has_lookup
        tally = self.tallies.setdefault(name, Tally())
        tally.rounds += 1
        tally.tokens += len(wrote)
        if chosen is not None:
            tally.drafted += chosen.count
            tally.promised += chosen.rate
        state.candidates, state.chosen, state.asked, state.length = [], None, [], len(sequence.tokens)


def _lookup(drafter: Drafter) -> Lookup:
    if not isinstance(drafter, Lookup):
        raise UsageError(f"{drafter.name} is no Lookup; say how far it may draft: Arm(drafter, longest)")
    return drafter


def _only_lookups(chosen: Seq[Candidate | None]) -> bool:
    """Whether all drafts of a round are known when they are chosen; a head's are not, and may carry lookups."""
    return all(candidate is None or candidate.tokens for candidate in chosen)


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
