"""Sequoia (Chen et al., 2024): the best fixed tree where only a child's rank decides how likely it is accepted.

accept[k] is the chance that the child of rank k is the one that is accepted, given that its parent was; their sum is at
most 1. By dynamic programming,

    F[l][b][m] = most positions that a tree of m nodes (root included) in at most l layers commits on average, if its
                 root has b children
               = max over y of F[l][b - 1][y] + accept[b - 1] * max over b' of F[l - 1][b'][m - y]

and size and depth follow from measured times: the least (draft calls * T_draft + T_verify(m)) per committed position.
The result is a list of rank paths for `core.shapes.static_tree`; ranks are the order of draws, so the tree is to be
drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...types import DraftBatch, Verdict
from .static_tree import Paths

Array = NDArray[np.float64]
KNOWN = 8  # acceptances of a rank from which on its share says more than the other ranks do


@dataclass(frozen=True, slots=True)
class Choice:
    """A size and a depth for one machine."""

    size: int  # nodes, the root included
    layers: int  # the root's included; one draft call less
    tokens: float  # that a round commits on average
    seconds: float  # per token


class Sequoia:
    """The table F for trees of up to `size` nodes and `layers` layers, the root included in both."""

    def __init__(self, accept: Seq[float], size: int, layers: int) -> None:
        if size < 1 or layers < 1 or not accept or min(accept) < 0 or sum(accept) > 1 + 1e-6:
            raise UsageError("acceptance by rank must be chances that add up to at most 1, sizes and layers at least 1")
        self.accept, self.size, self.layers = tuple(accept), size, layers
        shape = (layers + 1, len(accept) + 1, size + 1)
        self._value = np.full(shape, -np.inf)
        self._split = np.zeros(shape, dtype=np.int64)  # y: nodes that stay with the root and its earlier children
        for layer in range(1, layers + 1):
            self._value[layer, 0, 1] = 1.0
            below = self._value[layer - 1].max(axis=0)
            for rank, chance in enumerate(self.accept):
                sums = _all_splits(self._value[layer, rank], below, chance)
                self._value[layer, rank + 1] = sums.max(axis=1)
                self._split[layer, rank + 1] = sums.argmax(axis=1)

    def tokens(self, size: int, layers: int) -> float:
        """Positions that the best tree of exactly `size` nodes commits on average; -inf if there is no such tree."""
        return float(self._value[layers, :, size].max())

    def paths(self, size: int, layers: int) -> Paths:
        """The best tree of `size` nodes in at most `layers` layers, as rank paths; the root itself has none."""
        children = int(self._value[layers, :, size].argmax())
        found: list[tuple[int, ...]] = []
        for rank in range(children, 0, -1):
            stay = int(self._split[layers, rank, size])
            below = self.paths(size - stay, layers - 1)
            found += [(rank - 1,), *((rank - 1, *path) for path in below)]
            size = stay
        return tuple(sorted(found, key=lambda path: (len(path), path)))

    def best(self, draft: float, verify: Mapping[int, float]) -> Choice:
        """The cheapest tree a token: draft = seconds of a draft call, verify[m] = seconds of a pass over m nodes."""
        choices = [
            Choice(size, layers, tokens, ((layers - 1) * draft + seconds) / tokens)
            for size, seconds in sorted(verify.items())
            for layers in range(1, self.layers + 1)
            if size <= self.size and (tokens := self.tokens(size, layers)) > 0
        ]
        if not choices:
            raise UsageError(f"no measured size fits a table of {self.size} nodes")
        return min(choices, key=lambda choice: choice.seconds)


def _all_splits(stay: Array, below: Array, chance: float) -> Array:
    """[m, y] value of m nodes of which y stay and the rest hangs below with that chance; -inf where that is no tree."""
    size = np.arange(stay.size)
    rest = (size[:, None] - size[None, :]).clip(min=0)
    hanging = np.where(np.isfinite(below), chance * np.maximum(below, 0), -np.inf)  # 0 * -inf is no number
    return stay[None, :] + hanging[rest]


class RankCounts:
    """How often the child of each rank was the one accepted, among visited nodes with at least so many children."""

    def __init__(self, ranks: int) -> None:
        self.visited, self.accepted = 0, np.zeros(ranks)

    def observe(self, drafts: DraftBatch, verdict: Verdict) -> None:
        """A verified round. Copies to the host."""
        for b in range(drafts.batch):
            tree, path = drafts.tree(b), verdict.row(b).path
            for node, child in zip([-1, *path], [*path, None], strict=True):
                if len(tree.children(node)) < self.accepted.size:
                    continue  # fewer children would make the others seem more likely than they are
                self.visited += 1
                if child is not None and tree.order[child] < self.accepted.size:
                    self.accepted[tree.order[child]] += 1

    def chances(self) -> tuple[float, ...]:
        """The acceptance vector; ranks that were never accepted get no chance."""
        return tuple((self.accepted / max(1, self.visited)).tolist())

    def smoothed(self) -> tuple[float, ...]:
        """The same with a tail a_k = c k^-s: ranks of few acceptances follow the better known ones.

        Fitted to the logarithms, each rank weighing as often as it was accepted; no rank gets more than the last
        known one, and all together no more than 1.
        """
        known = self.accepted >= KNOWN
        if known.sum() < 2:
            return self.chances()
        rank, chance = np.arange(1, self.accepted.size + 1), self.accepted / self.visited
        fit = np.polyfit(np.log(rank[known]), np.log(chance[known]), 1, w=np.sqrt(self.accepted[known]))
        tail = np.minimum(np.exp(np.polyval(fit, np.log(rank))), chance[known][-1])
        found = np.where(known, chance, tail)
        return tuple((found / max(1.0, found.sum())).tolist())
