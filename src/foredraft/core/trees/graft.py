"""Chains grafted onto a sequence's tree: looked-up tokens that the head did not draft. Pure, on the host.

Lookups are lists of the host anyway, and trees that a cost model has sized are small. Which tokens are siblings
depends on what they are, so the result is CHOSEN (DESIGN invariant 5).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

NOBODY = -1  # the source of a node that the tree's own drafter did not write


@dataclass(slots=True)
class Graft:
    """One sequence's tree under grafting. Values are chances of being committed, so they fall along every path."""

    token: list[int]
    parent: list[int]  # -1 = root, otherwise an earlier node
    value: list[float]
    source: list[int]  # by which its drafter knows each node
    _child: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        self._child = {key: i for i, key in enumerate(zip(self.parent, self.token, strict=True))}

    def agrees(self, token: int) -> int:
        """How the tree ranks a first token: 0 = absent, 1 = possible, 2 = the most likely."""
        node = self._child.get((-1, token))
        if node is None:
            return 0
        return 2 if self.value[node] >= max(v for v, p in zip(self.value, self.parent, strict=True) if p < 0) else 1

    def add(self, tokens: Seq[int], values: Seq[float]) -> None:
        """A chain. Where it runs along the tree, the larger value counts."""
        at = -1
        for token, value in zip(tokens, values, strict=True):
            node = self._child.get((at, token))
            if node is None:
                node = self._child[at, token] = len(self.token)
                self.token.append(token)
                self.parent.append(at)
                self.value.append(value)
                self.source.append(NOBODY)
            self.value[node] = max(self.value[node], value)
            at = node

    def falling(self) -> list[float]:
        """All values, the largest first."""
        return sorted(self.value, reverse=True)

    def best(self, count: int) -> Graft:
        """The best `count` nodes in their order; of equal ones the earlier, so parents stay with their children."""
        kept = sorted(sorted(range(len(self.token)), key=lambda i: (-self.value[i], i))[:count])
        place = {node: i for i, node in enumerate(kept)} | {-1: -1}
        return Graft(
            [self.token[i] for i in kept],
            [place[self.parent[i]] for i in kept],
            [self.value[i] for i in kept],
            [self.source[i] for i in kept],
        )
