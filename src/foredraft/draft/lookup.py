"""Drafters that look up, text by text and on the host, what followed before: one chain for each text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Seq

from ..core.rng.keyed import Rng
from ..types import DraftBatch, Kind, Sequence, Topology
from ..types.drafts import chains
from .base import Drafter

Looked = tuple[list[int], list[float]]  # what may follow, and the chance of each token that all up to it are committed


class Lookup(Drafter):
    """Derive from it, set `name` and `nodes`, and define `look_up`."""

    kinds = frozenset({Kind.CHOSEN})
    topology = Topology.CHAIN

    @abstractmethod
    def look_up(self, sequence: Sequence) -> Looked:
        """Within the sequence's budget; nothing found = two empty lists."""

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        found = [self.look_up(sequence) for sequence in sequences]
        return chains([tokens for tokens, _ in found], values=[chances for _, chances in found])
