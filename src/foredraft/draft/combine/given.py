"""Drafts that come with a request: what its grammar forces, and the output that its sender expects.

Both cost nothing, so they go before whatever the drafter inside has guessed. A grammar forces text, not tokens: the
target may cut it otherwise, so what is forced is drafted and verified like anything else. For drafts that are CHOSEN.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from ...core.rng.keyed import Rng
from ...core.trees.editing import join, move, part
from ...core.trees.fuse import own_nodes
from ...types import Constraint, DraftBatch, ForcingConstraint, Kind, Sequence, Verdict
from ...types.drafts import chains
from ..base import Drafter, Round, WrappedDrafter

MATCHED = 3  # tokens of the output that must occur in the expected one for drafting to go on after them


class Expected:
    """An expected output, followed as the real one grows."""

    def __init__(self, tokens: Seq[int]) -> None:
        self._tokens, self._at, self._read = list(tokens), 0, 0
        self._places: dict[tuple[int, ...], list[int]] = {}
        for end in range(MATCHED, len(self._tokens) + 1):
            self._places.setdefault(tuple(self._tokens[end - MATCHED : end]), []).append(end)

    def after(self, output: list[int]) -> list[int]:
        """What is expected to follow; nothing after the output has left the expected one, until both meet again."""
        new = output[self._read :]
        self._read = len(output)
        if self._tokens[self._at : self._at + len(new)] == new:
            self._at += len(new)
        else:
            places = self._places.get(tuple(output[-MATCHED:]), [])
            near = [place for place in places if place >= self._at]
            self._at = (near or places or [len(self._tokens)])[0]
        return self._tokens[self._at :]


class GivenDrafter(WrappedDrafter):
    """Around a drafter whose drafts are CHOSEN."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        assert inner.kinds == {Kind.CHOSEN}, "drawn drafts and given ones need different rules"
        self._constraints: dict[int, ForcingConstraint] = {}
        self._expected: dict[int, Expected] = {}
        self._chains: dict[int, tuple[bool, int]] = {}  # of this round, by sequence: whether forced, how long
        self._wrote: tuple[dict[int, int], DraftBatch] | None = None  # what the drafter inside wrote, where replaced

    def declines(self, sequence: Sequence, running: int) -> bool:
        given = sequence.expected or sequence.params.grammar is not None
        return not given and super().declines(sequence, running)

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        for sequence in sequences:
            grammar = sequence.params.grammar
            constraint: Constraint | None = None if grammar is None else grammar.start()
            if isinstance(constraint, ForcingConstraint):
                self._constraints[sequence.id] = constraint
            if sequence.expected:
                self._expected[sequence.id] = Expected(sequence.expected)

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            for kept in (self._constraints, self._expected, self._chains):
                kept.pop(sequence.id, None)

    def rests(self, sequences: Seq[Sequence]) -> bool:
        return not self._constraints and not self._expected and super().rests(sequences)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        drafts, self._wrote = self.inner.propose(sequences, rng), None
        found = [self._given(sequence) for sequence in sequences]
        who = [b for b, chain in enumerate(found) if chain]
        if not who:
            return drafts
        self._wrote = {s.id: b for b, s in enumerate(sequences)}, replace(drafts, distributions=None, started=None)
        others = [b for b in range(len(sequences)) if b not in who]
        parts = [(who, chains([found[b] for b in who], drafts.token.device))]
        return join([*parts, *([(others, part(drafts, others))] if others else [])], len(sequences))

    def _given(self, sequence: Sequence) -> list[int]:
        """The chain that the request brings itself for this round."""
        self._chains.pop(sequence.id, None)
        room = min(sequence.budget.chain, self.nodes)
        if room < 1 or not (self._constraints or self._expected):
            return []
        constraint, expected = self._constraints.get(sequence.id), self._expected.get(sequence.id)
        chain = [] if constraint is None else constraint.forced(sequence.output)[:room]
        forced = bool(chain)
        if expected is not None:
            likely = expected.after(sequence.output)[:room]
            chain = chain or likely
        if chain:
            self._chains[sequence.id] = forced, len(chain)
        return chain

    def observe(self, round: Round) -> None:
        for sequence, accepted in zip(round.sequences, round.accepted, strict=True):
            forced, length = self._chains.pop(sequence.id, (False, 0))
            right = min(accepted, length)
            if forced:
                sequence.given.forced += right
            else:
                sequence.given.predicted += right
                sequence.given.mispredicted += length - right
        self.inner.observe(round if self._wrote is None else replace(round, drafts=self._seen(round, *self._wrote)))

    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        if self._wrote is None:  # else the drafter inside would go on from drafts that were not verified
            super().draft_ahead(sequences, verdict)

    @staticmethod
    def _seen(round: Round, rows: dict[int, int], wrote: DraftBatch) -> DraftBatch:
        """What was verified, with the numbers of the drafter inside for those nodes that it wrote as well."""
        verified = round.drafts
        if not verified.width:
            return verified
        mine = part(wrote, [rows[sequence.id] for sequence in round.sequences])
        return replace(verified, source=own_nodes(verified, move(mine, verified.token.device)))
