"""Drafts with a head that needs no attention (Medusa, the MLP speculator): it follows the newest target state only."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import Rng
from ...core.shapes.base import Frontier, Shape, Step, Vocabulary, most_siblings
from ...models.heads import RecurrentHead
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter, Round, propose_for
from .draft_model import draft_block
from .kept_features import accepted_rows


class MedusaDrafter(Drafter):
    """Remembers the target's state before the pending token of every sequence and lets the shape grow from it."""

    reads_text = False

    def __init__(self, head: RecurrentHead, shape: Shape, vocabulary: Vocabulary, name: str) -> None:
        self.name, self.head, self.shape, self.vocabulary = name, head, shape, vocabulary
        self.kinds: frozenset[Kind] = frozenset({shape.kind})
        self.topology: Topology = shape.topology
        self.nodes, self.siblings, self.draft_words = shape.nodes, most_siblings(shape), len(vocabulary.ids)
        self.taps = frozenset(head.taps)
        self._state: dict[int, Tensor] = {}  # sequence id -> [d]

    @torch.no_grad()
    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, states in zip(sequences, hidden, strict=True):
            if len(states[self.head.taps[0]]):
                self._state[sequence.id] = self.kept([self._here(states[tap][-1]) for tap in self.head.taps])

    def kept(self, states: list[Tensor]) -> Tensor:
        """What is remembered of the target's states by tap, [.., d] each."""
        return self.head.feature(states)

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return propose_for(self.ready(sequences), sequences, rng, self._propose)

    def ready(self, sequences: Seq[Sequence]) -> list[bool]:
        """Whose states are known: a prompt of one token has none yet."""
        return [s.id in self._state for s in sequences]

    def _propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return self.grow(self.head, sequences, self.states_of(sequences), rng)

    def states_of(self, sequences: Seq[Sequence]) -> Tensor:
        """What was kept for each sequence."""
        return torch.stack([self._state[s.id] for s in sequences])

    def grow(self, head: RecurrentHead, sequences: Seq[Sequence], state: Tensor, rng: Rng) -> DraftBatch:
        """Drafts of a head that starts from these features."""
        pending = torch.tensor([s.tokens[-1] for s in sequences], device=state.device)
        block = draft_block(sequences, self.shape, len(self.vocabulary.ids), state.device)
        ids = tuple(s.id for s in sequences)
        stepper = MedusaStepper(head, ids, state, pending, block, self.vocabulary, self.shape.numbered)
        return self.shape.grow(stepper, [s.budget for s in sequences], rng.to(state.device))

    @torch.no_grad()
    def observe(self, round: Round) -> None:
        rows, counts = accepted_rows(round)
        last = rows[torch.tensor(counts, device=rows.device).cumsum(0) - 1]
        newest = self.kept([self._here(round.out.hidden[tap][last]) for tap in self.head.taps])
        self._state |= {s.id: state for s, state in zip(round.sequences, newest, strict=True)}

    def _here(self, states: Tensor) -> Tensor:
        """Target states on the head's device; counts what came from another one."""
        device = self.vocabulary.ids.device
        if states.device != device:
            states = states.to(device)
            self.moved += states.nbytes
        return states

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._state.pop(sequence.id, None)


class MedusaStepper:
    """One round of a recurrent head. Shapes read level by level, so the number of calls is the depth."""

    def __init__(
        self,
        head: RecurrentHead,
        ids: tuple[int, ...],
        state: Tensor,
        pending: Tensor,
        block: ParamBlock,
        words: Vocabulary,
        numbered: int,
    ) -> None:
        self.head, self.block, self.words, self.pending = head, block, words, pending
        self.batch, self.ids, self.device = len(state), ids, state.device
        self._begin = head.begin(state)
        self._numbered, self._states = numbered, state.new_empty(0)  # states of nodes read so far; row 0 is the root
        self._depth = 0

    def root(self) -> Step:
        return self._step(self._begin[:, None], self.pending[:, None], torch.zeros_like(self.pending)[:, None])

    def expand(self, frontier: Frontier) -> Step:
        above = (frontier.parent + 1)[:, :, None].expand(-1, -1, self._states.shape[2])
        return self._step(self._states.gather(1, above), frontier.token, frontier.node + 1)

    def _step(self, state: Tensor, token: Tensor, place: Tensor) -> Step:
        """One depth further for [B, w] nodes, whose states go to `place`."""
        depth = self._depth
        state, feature = self.head.step(state, self.head.embed(token, depth), depth)
        if depth == 0:
            self._states = state.new_zeros((self.batch, self._numbered + 1, state.shape[-1]))
        self._depth += 1
        self._states.scatter_(1, place[:, :, None].expand_as(state), state)
        rows = torch.arange(token.numel(), device=self.device).view_as(token)
        features = feature.flatten(0, 1)
        return Step(self.head.logits(features, depth), rows, self.block, features, self.words)
