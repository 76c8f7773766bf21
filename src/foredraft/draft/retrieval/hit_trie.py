"""The trie of what followed the places of a match, by frequency: the tree that REST drafts (He et al. 2024). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class HitTrie:
    """Nodes, the most frequent first; a parent comes before its children."""

    tokens: list[int]
    parents: list[int]  # -1 = root
    shares: list[float]  # of the rows that go through the node

    def path(self, least: float = 0.0) -> tuple[list[int], list[float]]:
        """The most frequent child after the most frequent child, while its share is at least `least`."""
        tokens, shares, at = [], [], -1
        for node, parent in enumerate(self.parents):
            if parent == at and self.shares[node] >= least:
                tokens.append(self.tokens[node])
                shares.append(self.shares[node])
                at = node
        return tokens, shares


NO_HITS = HitTrie([], [], [])


def hit_trie(rows: Array, end: int, nodes: int, least: float = 0.0) -> HitTrie:
    """The `nodes` most frequent beginnings of sorted rows [hits, depth]; of equal ones the shorter, then the first.

    In sorted rows every beginning is one run. `end` and what comes after it is no beginning of anything; a beginning
    whose share is below `least` is left out.
    """
    hits, depth = rows.shape
    if not hits or nodes < 1:
        return NO_HITS
    fresh = np.ones((hits, depth), bool)  # whether a row begins another run than the row above
    fresh[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    row, level = np.nonzero(fresh & (rows != end))
    order = np.argsort(level, kind="stable")  # level by level, each from the first row on
    row, level = row[order], level[order]
    number = np.full((hits, depth), -1)  # of the node whose run begins here ...
    number[row, level] = np.arange(len(row))
    number = np.maximum.accumulate(number, axis=0)  # ... and of the node that each row goes through
    counts = np.bincount(number[rows != end], minlength=len(row))
    parents = np.where(level > 0, number[row, level - 1], -1)
    falling = np.argsort(-counts, kind="stable")
    chosen = falling[: min(nodes, int((counts >= max(1.0, least * hits)).sum()))]
    place = np.full(len(row) + 1, -1)
    place[chosen] = np.arange(len(chosen))
    return HitTrie(
        rows[row[chosen], level[chosen]].tolist(), place[parents[chosen]].tolist(), (counts[chosen] / hits).tolist()
    )
