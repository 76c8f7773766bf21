"""DReSD (Gritta et al. 2025): what followed at the places that look most like this one to the target itself.

The state whose logits gave the newest token is looked up among the states of a store's texts and of earlier requests of
the same namespace; of the nearest places those count whose text goes on with the newest token, and what follows there
becomes a tree. States come with prefilling and with every verified pass, so they cost nothing but their place.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.trees.layout import trees
from ...runtime import FINAL
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter, Round
from ..store.segment import Array
from ..store.state_pool import StatePool
from ..store.stores import Stores
from .hit_trie import NO_HITS, HitTrie, hit_trie
from .namespaces import Namespaces

NEIGHBOURS = 100  # places that are looked at
END = -1


class Places(Protocol):
    """Texts that can be searched by a state."""

    @property
    def end(self) -> int:
        """Fills what lies after the end of a document."""

    def nearest(self, state: Array, count: int, depth: int) -> tuple[Array, Array]:
        """Cosines [n] and what follows [n, depth], the nearest first."""


@dataclass(slots=True)
class _Text:
    """A request: the states of its tokens so far, one for each but the newest."""

    pool: StatePool
    states: list[Array] = field(default_factory=list)


class DresdDrafter(Drafter):
    """At most `max_nodes` nodes out of the `places` nearest texts, each `depth` tokens long."""

    def __init__(
        self,
        stores: Stores[Any] | None = None,
        max_nodes: int = 16,
        depth: int = 10,
        places: int = 10,
        least: float = 0.3,
        name: str = "dresd",
    ) -> None:
        self.name, self.nodes, self.depth, self.places, self.least = name, max_nodes, depth, places, least
        self.stores = stores
        self.kinds, self.topology, self.taps = frozenset({Kind.CHOSEN}), Topology.TREE, frozenset({FINAL})
        self._pools = Namespaces(StatePool)
        self._texts: dict[int, _Text] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._texts[sequence.id] = _Text(self._pools.of(sequence.namespace))

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            text = self._texts.pop(sequence.id, None)
            if text is not None and text.states:
                states = np.concatenate(text.states)[: len(sequence.tokens)]
                text.pool.add(sequence.tokens, states)

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, place, states in zip(sequences, begin, hidden, strict=True):
            text = self._texts[sequence.id]
            known = np.concatenate(text.states)[:place] if text.states and place else None  # a piece read again
            text.states = [_numbers(states[FINAL])] if known is None else [known, _numbers(states[FINAL])]

    def observe(self, round: Round) -> None:
        """States of the pending token and of the accepted path."""
        for b, sequence in enumerate(round.sequences):
            path = round.verdict.path[b, : round.accepted[b]].tolist()
            rows = round.out.index[b][[0, *(node + 1 for node in path)]]
            self._texts[sequence.id].states.append(_numbers(round.out.hidden[FINAL][rows]))

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        found = [self._draft(sequence) for sequence in sequences]
        return trees([(t.tokens, t.parents) for t in found], value=[t.shares for t in found])

    def _draft(self, sequence: Sequence) -> HitTrie:
        text, depth = self._texts[sequence.id], min(self.depth, sequence.budget.depth)
        if not text.states or min(depth, sequence.budget.nodes) < 1:
            return NO_HITS
        searched: list[Places] = [text.pool, *(self.stores.of(sequence.namespace) if self.stores else ())]
        near, rows = [], []
        for places in searched:
            cosine, follows = places.nearest(text.states[-1][-1], NEIGHBOURS, depth + 1)
            right = (follows[:, 0] == sequence.tokens[-1]) & (cosine >= self.least)
            near.append(cosine[right])
            rows.append(np.where(follows[right, 1:] == places.end, END, follows[right, 1:]))
        best = np.argsort(-np.concatenate(near), kind="stable")[: self.places]
        chosen = np.concatenate(rows)[best]
        chosen = chosen[np.lexsort(chosen.T[::-1])]
        return hit_trie(chosen, END, min(self.nodes, sequence.budget.nodes))


def _numbers(states: Tensor) -> Array:
    found: Array = states.float().cpu().numpy()
    return found
