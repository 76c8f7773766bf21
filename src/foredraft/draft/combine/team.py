"""Drafters that draft for the same sequences: each is asked within its limits and shown the rounds as its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.trees.editing import among, move, part
from ...core.trees.fuse import own_nodes
from ...runtime import Output
from ...types import Budget, DraftBatch, Sequence, Verdict
from ...types.drafts import empty_drafts
from ..base import Drafter, Round


class Team(Drafter):
    """The verbs of a drafter of drafters, all but `propose`.

    A member sees the whole tree that was verified, whoever wrote its nodes, with `source` in its own numbers: -1 where
    it did not write the node. So heads find the target's state at every accepted node, and models keep the K/V of
    those nodes that they have read and read the others next time.
    """

    def __init__(self, members: Seq[Drafter]) -> None:
        self.members = list(members)
        self.taps = frozenset(tap for member in members for tap in member.taps)
        self.max_length = max(member.max_length for member in members)
        # What each member wrote this round, and which of its rows belongs to which sequence.
        self._wrote: dict[int, tuple[dict[int, int], DraftBatch]] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        for member in self.members:
            member.begin(sequences)

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for member in self.members:
            if member.taps:
                member.observe_prefill(sequences, begin, hidden)

    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        for member in self.members:
            member.prefetch(sequences, out, verdict)

    def observe(self, round: Round) -> None:
        for index, member in enumerate(self.members):
            member.observe(replace(round, drafts=self._seen_by(index, round)))

    def end(self, sequences: Seq[Sequence]) -> None:
        for member in self.members:
            member.end(sequences)

    def ask(
        self,
        index: int,
        sequences: Seq[Sequence],
        rng: Rng,
        nodes: int | None = None,
        depths: Seq[int] | None = None,
    ) -> DraftBatch:
        """One member's drafts, at most `nodes` of them and depths[b] deep; none for texts that are too long for it."""
        member = self.members[index]
        most = member.nodes if nodes is None else min(nodes, member.nodes)
        deepest = depths or [s.budget.depth for s in sequences]
        budgets = [
            Budget(min(s.budget.nodes, most), min(s.budget.depth, depth, member.max_length - len(s.tokens)))
            for s, depth in zip(sequences, deepest, strict=True)
        ]
        able = [b for b, budget in enumerate(budgets) if budget.chain > 0]
        drafts = empty_drafts(len(sequences))
        if able:
            # Copies share the list of tokens; only the budget is the member's own.
            texts = [replace(sequences[b], budget=budgets[b]) for b in able]
            own_rng = rng if len(able) == len(sequences) else rng.choose(torch.tensor(able))
            drafts = among(member.propose(texts, own_rng), able, len(sequences))
        rows = {sequence.id: b for b, sequence in enumerate(sequences)}
        self._wrote[index] = rows, replace(drafts, distributions=None, started=None)
        return drafts

    def _seen_by(self, index: int, round: Round) -> DraftBatch:
        verified = round.drafts
        if not verified.width:
            return verified
        if index not in self._wrote:
            return replace(verified, source=torch.full_like(verified.token, -1))
        rows, wrote = self._wrote[index]
        mine = part(wrote, [rows[sequence.id] for sequence in round.sequences])
        return replace(verified, source=own_nodes(verified, move(mine, verified.token.device)))


def mean_length(sequences: Seq[Sequence]) -> float:
    """Tokens of a sequence of the batch, on average: the context that its passes cost by."""
    return sum(len(sequence.tokens) for sequence in sequences) / len(sequences)
