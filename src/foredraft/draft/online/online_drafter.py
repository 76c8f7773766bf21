"""Drafts with heads that learn, one per namespace, and swaps their weights between two rounds.

Learning changes what is drafted, never what a rule makes of it: a draft is verified like any other, and one that was
drawn comes with the distribution that it was drawn from. Texts of one namespace teach its own head alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import cast

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.shapes.base import Shape, Vocabulary
from ...core.trees.editing import among, join
from ...models.heads import RecurrentHead
from ...types import DraftBatch, Sequence
from ...types.drafts import empty_drafts
from ..base import Round
from ..neural.medusa import MedusaDrafter
from .online_head import OnlineHead
from .recorder import Recorder

MOST_LEARNERS = 8  # namespaces with a head of their own; with SmolLM2's each takes some 100 MB
Learn = Callable[[str, OnlineHead], object]


class OnlineDrafter(MedusaDrafter):
    """`head` drafts where nobody has learnt: for requests that share with nobody, and beyond `MOST_LEARNERS`.

    `learn` is called between two rounds with a head that has `every` texts to learn from; by default it learns at once.
    """

    def __init__(
        self,
        head: RecurrentHead,
        shape: Shape,
        vocabulary: Vocabulary,
        name: str,
        learners: Callable[[str], OnlineHead],
        every: int = 8,
    ) -> None:
        super().__init__(head, shape, vocabulary, name)
        self.every = every
        self.learn: Learn = lambda namespace, learner: learner.update()
        self._make, self._sizes = learners, head.hidden_size
        self.learners: OrderedDict[str, OnlineHead] = OrderedDict()
        self._heads: dict[str, RecurrentHead] = {}  # by namespace, where something was learnt
        self._recorder = Recorder(head.taps)

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if sequence.namespace is not None:
                self._learner(sequence.namespace)

    def kept(self, states: list[Tensor]) -> Tensor:
        """The target's states as they are: which head will read them is known when it drafts."""
        return torch.cat(states, dim=-1)

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        groups: dict[str | None, list[int]] = {}
        for b, (sequence, ready) in enumerate(zip(sequences, self.ready(sequences), strict=True)):
            if not ready:
                continue
            groups.setdefault(self._current(sequence.namespace), []).append(b)
        parts = []
        for name, who in groups.items():
            own = rng if len(who) == len(sequences) else rng.choose(torch.tensor(who))
            drafts = self._draft(self.head if name is None else self._heads[name], [sequences[b] for b in who], own)
            parts += [(who, drafts)] if drafts.width else []
        if len(parts) == 1:
            return among(parts[0][1], parts[0][0], len(sequences))
        return join(parts, len(sequences)) if parts else empty_drafts(len(sequences))

    def _draft(self, head: RecurrentHead, sequences: list[Sequence], rng: Rng) -> DraftBatch:
        states = self.states_of(sequences)
        return self.grow(head, sequences, head.feature(torch.split(states, self._sizes, dim=-1)), rng)

    def observe(self, round: Round) -> None:
        super().observe(round)
        self._recorder.observe(round)

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            text, name = self._recorder.finish(sequence), sequence.namespace
            learner = None if name is None else self._learner(name)
            if text is None or name is None or learner is None:
                continue
            learner.hear(text)
            if learner.traffic.waiting >= self.every:
                self.learn(name, learner)

    def explain(self) -> list[str]:
        return [f"online {name or 'head'}: {learner.progress}" for name, learner in self.learners.items()]

    def _current(self, namespace: str | None) -> str | None:
        """The namespace whose head drafts for a request, with its newest weights; None = the first head."""
        learner = None if namespace is None else self.learners.get(namespace)
        if learner is None or namespace is None:
            return None
        new = learner.take()
        if new is not None:
            self._heads[namespace] = cast(RecurrentHead, new)
        return namespace if namespace in self._heads else None

    def _learner(self, namespace: str) -> OnlineHead:
        """A namespace's learner; the one that was asked least recently goes when there are too many."""
        if namespace not in self.learners:
            self.learners[namespace] = self._make(namespace)
            if len(self.learners) > MOST_LEARNERS:
                gone, _ = self.learners.popitem(last=False)
                self._heads.pop(gone, None)
        self.learners.move_to_end(namespace)
        return self.learners[namespace]
