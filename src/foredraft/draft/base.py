"""The contract of a drafter, and the record of a round that it may learn from."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..core.rng.keyed import Rng
from ..runtime import Output
from ..types import DraftBatch, Kind, Sequence, Topology, Verdict


@dataclass(frozen=True, slots=True)
class Round:
    """What verification revealed, for the sequences of one drafter. Tensors are valid until the next round."""

    sequences: list[Sequence]  # their tokens do not hold this round's yet
    drafts: DraftBatch
    out: Output  # the target's logits and states at *every* drafted node, also below rejected ones
    verdict: Verdict
    accepted: list[int]  # accepted nodes per sequence, on the host


class Drafter(Protocol):
    """Proposes drafts for a batch of sequences of different lengths."""

    name: str
    kinds: frozenset[Kind]  # kinds of sibling groups that it makes: decides which rules are exact with it
    topology: Topology
    taps: frozenset[int]  # target states that it wants to see (runtime.FINAL, or a layer's entry)
    nodes: int  # most nodes that it ever drafts for a sequence
    max_length: int  # longest text that it can follow; sequences beyond it go on without drafts

    def begin(self, sequences: Seq[Sequence]) -> None:
        """New requests; their prompts are in `tokens`."""

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        """Tapped target states of prompt tokens from begin[b] on, [tokens, d] per tap.

        All prompt tokens but the last come by here, in one call or in several; the last one comes with a round.
        """

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        """Drafts within each sequence's `budget`; none is always allowed."""

    def observe(self, round: Round) -> None:
        """TokenFeatures at a verified round: called after every round of its sequences, also where it drafted nothing."""

    def end(self, sequences: Seq[Sequence]) -> None:
        """Requests that are over, finished or cancelled; forget what belongs to them."""


class QuietDrafter:
    """The verbs that many drafters leave empty."""

    taps: frozenset[int] = frozenset()
    max_length: int = 1 << 30

    def begin(self, sequences: Seq[Sequence]) -> None:
        pass

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        pass

    def observe(self, round: Round) -> None:
        pass

    def end(self, sequences: Seq[Sequence]) -> None:
        pass


def prefetch(drafter: Drafter, out: Output, verdict: Verdict) -> None:
    """Let a drafter begin with what it will observe, while the device still works on it; few have use for that.

    Nobody may look at values here: the host has not waited for them yet.
    """
    early = getattr(drafter, "prefetch", None)
    if early is not None:
        early(out, verdict)


def draft_ahead(drafter: Drafter, sequences: Seq[Sequence], verdict: Verdict) -> None:
    """Let a drafter begin with its next drafts before the host knows the verdict on the last; few can do that."""
    begin = getattr(drafter, "draft_ahead", None)
    if begin is not None:
        begin(sequences, verdict)


def weighs_costs(drafter: Drafter) -> bool:
    """Whether a drafter chooses the size of its drafts by what they cost and bring; few do, so few say so."""
    return bool(getattr(drafter, "weighs_costs", False))
