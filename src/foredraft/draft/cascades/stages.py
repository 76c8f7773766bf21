"""Drafters one after another, each continuing what the ones before it drafted: the horizontal part of a cascade."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from ...core.rng.keyed import Rng
from ...runtime import Output
from ...types import DraftBatch, Kind, Sequence, Topology, Verdict
from ...types.drafts import chains
from ..base import Drafter, Round
from .continuing import Continuing


class StagedDrafter(Drafter):
    """At most so many tokens of each member, the first member first. Nothing is drawn, so the chain is CHOSEN."""

    def __init__(self, stages: Seq[tuple[Continuing, int]], name: str = "cascade", about: str = "") -> None:
        self.stages, self.name, self.about = list(stages), name, about
        self.nodes = sum(most for _, most in stages)
        self.kinds, self.topology = frozenset({Kind.CHOSEN}), Topology.CHAIN
        self.taps = frozenset(tap for member, _ in stages for tap in member.taps)

    def begin(self, sequences: Seq[Sequence]) -> None:
        for member, _ in self.stages:
            member.begin(sequences)

    def end(self, sequences: Seq[Sequence]) -> None:
        for member, _ in self.stages:
            member.end(sequences)

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for member, _ in self.stages:
            member.observe_prefill(sequences, begin, hidden)

    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        for member, _ in self.stages:
            member.prefetch(sequences, out, verdict)

    def observe(self, round: Round) -> None:
        for member, _ in self.stages:
            member.observe(round)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        none: list[list[int]] = [[] for _ in sequences]
        return chains(self.continue_from(sequences, none, [s.budget.chain for s in sequences]))

    def continue_from(self, sequences: Seq[Sequence], drafted: Seq[Seq[int]], limits: Seq[int]) -> list[list[int]]:
        aheads = [list(ahead) for ahead in drafted]
        ends = [len(ahead) + limit for ahead, limit in zip(drafted, limits, strict=True)]
        for member, most in self.stages:
            rooms = [min(most, end - len(ahead)) for ahead, end in zip(aheads, ends, strict=True)]
            if max(rooms) <= 0:
                continue
            for ahead, tokens in zip(aheads, member.continue_from(sequences, aheads, rooms), strict=True):
                ahead += tokens
        return [ahead[len(known) :] for ahead, known in zip(aheads, drafted, strict=True)]

    def explain(self) -> list[str]:
        return [self.about] if self.about else []
