"""REST: what followed the longest match of the text's end in a datastore, as a tree by frequency (He et al. 2024).

The store is there before the request and does not change while it runs; a miss drafts nothing. Text of one namespace is
looked up in the stores that the namespace may see.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ...core.rng.keyed import Rng
from ...core.trees.layout import trees
from ...types import Budget, DraftBatch, Sequence, Topology
from ..lookup import Looked, Lookup
from ..store import Stores, Texts
from ..store.stores import look_up
from .hit_trie import NO_HITS, HitTrie, hit_trie

MOST_PLACES = 512  # of a match that are counted, evenly spaced


class RestDrafter(Lookup):
    """At most `max_nodes` nodes, none deeper than `depth`, none that fewer than `min_share` of the places have."""

    def __init__(
        self,
        stores: Stores[Texts],
        max_nodes: int = 16,
        depth: int = 10,
        min_share: float = 0.05,
        tree: bool = True,
        name: str = "rest",
    ) -> None:
        self.name, self.nodes, self.depth, self.min_share, self.tree = name, max_nodes, depth, min_share, tree
        self.stores = stores
        self.topology = Topology.TREE if tree else Topology.CHAIN

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        if not self.tree:
            return super().propose(sequences, rng)
        found = [self.continuations(sequence, sequence.budget) for sequence in sequences]
        return trees([(t.tokens, t.parents) for t in found], value=[t.shares for t in found])

    def look_up(self, sequence: Sequence) -> Looked:
        return self.continuations(sequence, sequence.budget).path(self.min_share)

    def continuations(self, sequence: Sequence, budget: Budget) -> HitTrie:
        """What followed the end of a text, within a budget."""
        depth, nodes = min(self.depth, budget.depth), min(self.nodes, budget.nodes)
        if min(depth, nodes) < 1:
            return NO_HITS
        seen = self.stores.of(sequence.namespace)
        hits = look_up(seen, sequence.tokens, depth, MOST_PLACES)
        return hit_trie(hits.rows, seen[0].end, nodes, self.min_share) if hits.matched else NO_HITS
