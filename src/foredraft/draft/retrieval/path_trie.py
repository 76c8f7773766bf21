"""One tree of token paths, on the host, within a budget; equal beginnings are one path."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ...types import Budget


class PathTrie:
    """Token paths merged into one tree, at most `nodes` nodes and `depth` levels."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._depth: list[int] = []
        self._child: dict[tuple[int, int], int] = {}

    def child(self, parent: int, token: int) -> int | None:
        """The node of a token below another (-1 = root), made where there is room; None = there is none."""
        known = self._child.get((parent, token))
        depth = 1 if parent < 0 else self._depth[parent] + 1
        if known is not None or len(self.tokens) >= self.budget.nodes or depth > self.budget.depth:
            return known
        node = self._child[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self._depth.append(depth)
        return node

    def add(self, path: Seq[int], at: int = -1) -> list[int]:
        """The nodes of a path, as far as there is room."""
        found: list[int] = []
        for token in path:
            node = self.child(found[-1] if found else at, token)
            if node is None:
                break
            found.append(node)
        return found
