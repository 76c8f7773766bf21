"""What every drafter can be asked, the record of a round that it may learn from, and the wrapper around a drafter.

Knows no drafter by name, and nothing of the engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core.rng.keyed import Rng
from ..core.trees.editing import among
from ..runtime import Output
from ..types import DraftBatch, Kind, Sequence, Topology, Verdict
from ..types.drafts import empty_drafts


def propose_for(
    ready: Seq[bool], sequences: Seq[Sequence], rng: Rng, propose: Callable[[Seq[Sequence], Rng], DraftBatch]
) -> DraftBatch:
    """Drafts of the sequences that are ready; the others, such as prompts of one token, have none in this round."""
    who = [b for b, one in enumerate(ready) if one]
    if len(who) == len(sequences):
        return propose(sequences, rng)
    if not who:
        return empty_drafts(len(sequences))
    return among(propose([sequences[b] for b in who], rng.choose(torch.tensor(who))), who, len(sequences))


def depths_of(drafts: DraftBatch) -> Seq[int]:
    """How far each sequence was drafted along its longest path."""
    if drafts.topology is Topology.CHAIN or not drafts.width:
        return drafts.lengths()
    depths: list[int] = torch.where(drafts.used(), drafts.depth, 0).amax(dim=1).tolist()
    return depths


@dataclass(frozen=True, slots=True)
class Round:
    """What verification revealed, for the sequences of one drafter. Tensors are valid until the next round."""

    sequences: list[Sequence]  # their tokens do not hold this round's yet
    drafts: DraftBatch
    out: Output  # the target's logits and states at *every* drafted node, also below rejected ones
    verdict: Verdict
    accepted: list[int]  # accepted nodes per sequence, on the host
    early: bool = False  # whether its pass had begun before its drafters were asked: a clock would say too little

    def own_rows(self, b: int) -> dict[int, int]:
        """The drafter's own number of each verified node of a sequence -> its row of the pass; row 0 is the root."""
        count = self.drafts.lengths()[b]
        numbers = range(count) if self.drafts.source is None else self.drafts.source[b, :count].tolist()
        return {number: row for row, number in enumerate(numbers, 1) if number >= 0}

    def own_depths(self) -> Seq[int]:
        """How far each sequence was drafted along its longest path, by the drafter itself."""
        drafts = self.drafts
        if drafts.source is None or not drafts.width:
            return depths_of(drafts)
        depths: list[int] = torch.where(drafts.used() & (drafts.source >= 0), drafts.depth, 0).amax(dim=1).tolist()
        return depths

    def own_accepted(self) -> Seq[int]:
        """Accepted nodes of each sequence that the drafter wrote itself: the beginning of the path. A tree of several
        drafters holds others' too."""
        source = self.drafts.source
        if source is None or not self.drafts.width:
            return self.accepted
        path = self.verdict.path
        own = (path >= 0) & (source.gather(1, path.clamp(min=0)) >= 0)
        return own.to(torch.int64).cumprod(dim=1).sum(dim=1).tolist()

    def top_tokens(self, b: int, rows: Seq[int]) -> list[int]:
        """The target's top token after some rows of a sequence."""
        if not rows:
            return []
        packed = self.out.index[b, torch.tensor(list(rows), device=self.out.index.device)]
        found: list[int] = self.out.logits[packed].argmax(dim=1).tolist()
        return found


class Drafter(Protocol):
    """Proposes drafts for a batch of sequences of different lengths.

    To write one, derive from this class, set the first four attributes and define `propose`; the rest has defaults.
    """

    name: str
    kinds: frozenset[Kind]  # kinds of sibling groups that it makes: decides which rules are exact with it
    topology: Topology
    nodes: int  # most nodes that it ever drafts for a sequence
    taps: frozenset[int] = frozenset()  # target states that it wants to see (runtime.FINAL, or a layer's entry)
    reads_text: bool = True  # whether it must read, before it drafts, what was written since it drafted last
    max_length: int = 1 << 30  # longest text that it can follow; sequences beyond it go on without drafts
    moved: int = 0  # bytes of target states that it had to fetch from another device so far
    draft_words: int = 0  # most tokens that its distributions give mass to, where it draws; 0 = it does not say
    siblings: int = 0  # most children of a node; 0 = it does not say
    cost_aware: bool = False  # sizes its drafts by what they cost and bring, so the budget planner leaves it alone
    shares: bool = False  # whether what it drafts for a sequence depends on the others of the batch
    beside: int = 0  # texts of other methods in the same pass, which its drafts delay too; the engine says so

    @property
    def gives_states(self) -> bool:
        """Whether its drafts come with its own hidden states, which some rules read."""
        return False

    def declines(self, sequence: Sequence, running: int) -> bool:
        """Whether a request, one of so many, had better go without drafts to its end, by what others have shown: asked
        before it begins, where a drafter does not hear of it then, and now and then while it runs."""
        return False

    def begin(self, sequences: Seq[Sequence]) -> None:
        """New requests; their prompts are in `tokens`."""
        return

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        """Tapped target states of prompt tokens from begin[b] on, [tokens, d] per tap.

        All prompt tokens but the last come by here, in one call or in several; the last one comes with a round.
        """
        return

    def rests(self, sequences: Seq[Sequence]) -> bool:
        """Whether it drafts nothing this round and most likely nothing in the next. Asked before `propose`, which is
        left out then; the device may begin the next round before the host knows this one's end."""
        return False

    @abstractmethod
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        """Drafts within each sequence's `budget`; none is always allowed."""

    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        """Start on what `observe` will need while the device still computes it; no value may be read here."""
        return

    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        """Start on the next drafts before the host knows the verdict on the last; no value may be read here."""
        return

    def observe(self, round: Round) -> None:
        """A verified round: called after every round of its sequences, also where it drafted nothing."""
        return

    def end(self, sequences: Seq[Sequence]) -> None:
        """Requests that are over, finished or cancelled; forget what belongs to them."""
        return

    def explain(self) -> list[str]:
        """What it chose so far and what came of it, a line each; nothing where there was nothing to choose."""
        return []


class WrappedDrafter(Drafter):
    """Forwards every attribute and every verb to another drafter; derive from it and change what differs."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name, self.kinds, self.topology = inner.name, inner.kinds, inner.topology
        self.nodes, self.taps, self.max_length = inner.nodes, inner.taps, inner.max_length
        self.reads_text = inner.reads_text
        self.cost_aware, self.shares = inner.cost_aware, inner.shares
        self.draft_words, self.siblings = inner.draft_words, inner.siblings

    @property
    def moved(self) -> int:  # type: ignore[override]
        return self.inner.moved

    @property
    def gives_states(self) -> bool:
        return self.inner.gives_states  # a rule may switch it on later

    @property
    def beside(self) -> int:
        return self.inner.beside

    @beside.setter
    def beside(self, texts: int) -> None:
        self.inner.beside = texts

    def declines(self, sequence: Sequence, running: int) -> bool:
        return self.inner.declines(sequence, running)

    def begin(self, sequences: Seq[Sequence]) -> None:
        self.inner.begin(sequences)

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        self.inner.observe_prefill(sequences, begin, hidden)

    def rests(self, sequences: Seq[Sequence]) -> bool:
        return self.inner.rests(sequences)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return self.inner.propose(sequences, rng)

    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        self.inner.prefetch(sequences, out, verdict)

    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        self.inner.draft_ahead(sequences, verdict)

    def observe(self, round: Round) -> None:
        self.inner.observe(round)

    def end(self, sequences: Seq[Sequence]) -> None:
        self.inner.end(sequences)

    def explain(self) -> list[str]:
        return self.inner.explain()
