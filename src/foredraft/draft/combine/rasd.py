"""RASD (Quan et al. 2025): a retrieved tree, pruned by a model's own distributions, fused with the model's tree.

Looked-up text may be frequent and yet wrong here. Where the model has read a node, its tree says which tokens it
considers next, so a retrieved token that is not among them goes, with all that hangs below it; a retrieved path keeps
the model's chances as far as the model's tree goes along it, and its share of the places that were found from there on.
What is left joins the model's tree by longest prefix, and the nodes of largest value are verified. Which nodes stay
depends on their tokens: the result is CHOSEN.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from ...core.rng.keyed import Rng
from ...core.trees.fuse import fuse
from ...core.trees.layout import trees
from ...types import Budget, DraftBatch, DraftTree, Kind, Sequence, Topology
from ..base import Drafter
from .team import Team

MODEL, RETRIEVED = 0, 1


class RasdDrafter(Team):
    """At most `max_nodes` nodes. The model may grow more than that, to say what it considers at all."""

    def __init__(self, model: Drafter, retrieval: Drafter, max_nodes: int = 32, name: str = "rasd") -> None:
        super().__init__([model, retrieval])
        self.name, self.nodes = name, max_nodes
        self.kinds, self.topology = frozenset({Kind.CHOSEN}), Topology.TREE

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        roomy = [replace(s, budget=Budget(self.members[MODEL].nodes, s.budget.depth)) for s in sequences]
        grown, found = self.ask(MODEL, roomy, rng), self.ask(RETRIEVED, sequences, rng)
        if found.width:
            found = pruned(grown, found)
            rows = {sequence.id: b for b, sequence in enumerate(sequences)}
            self._wrote[RETRIEVED] = rows, found
        return fuse([grown, found], [min(self.nodes, s.budget.nodes) for s in sequences])


def pruned(grown: DraftBatch, found: DraftBatch) -> DraftBatch:
    """What is left of retrieved trees, with values that count in the model's."""
    values = (drafts.value.tolist() if drafts.value is not None else None for drafts in (grown, found))
    chances, shares = values
    kept: list[tuple[list[int], list[int]]] = []
    worth: list[list[float]] = []
    for b in range(found.batch):
        model = _Considered(grown.tree(b), None if chances is None else chances[b])
        tokens, parents, value = model.prune(found.tree(b), None if shares is None else shares[b])
        kept.append((tokens, parents))
        worth.append(value)
    return trees(kept, device=found.token.device, value=worth)


class _Considered:
    """A model's tree as a table: what may follow a node, and with which chance."""

    def __init__(self, tree: DraftTree, chances: list[float] | None) -> None:
        self._child = {key: node for node, key in enumerate(zip(tree.parent, tree.token, strict=True))}
        self._read = set(tree.parent)  # nodes after which it says what may follow; -1 = the root
        self._chance = {-1: 1.0} | {i: 1.0 if chances is None else chances[i] for i in range(len(tree.token))}

    def prune(self, tree: DraftTree, shares: list[float] | None) -> tuple[list[int], list[int], list[float]]:
        tokens: list[int] = []
        parents: list[int] = []
        values: list[float] = []
        # Retrieved node -> its new number, its node of the model's tree (None = beyond it), and its value.
        place: dict[int, tuple[int, int | None, float]] = {-1: (-1, -1, 1.0)}
        for node, (token, parent) in enumerate(zip(tree.token, tree.parent, strict=True)):
            if parent not in place:
                continue
            number, at, above = place[parent]
            child = None if at is None else self._child.get((at, token))
            if child is None and at in self._read:
                continue  # the model has read what comes before, and does not consider this token
            share = 1.0 if shares is None else shares[node] / (shares[parent] if parent >= 0 else 1.0)
            value = self._chance[child] if child is not None else above * share
            place[node] = len(tokens), child, value
            tokens.append(token)
            parents.append(number)
            values.append(value)
        return tokens, parents, values
