"""Greedy verdicts by plain Python, for tensors on the host: a loop is quicker there than twenty small operations.

`device.decide_reference` says the same in tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from math import isfinite
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...core.verify.second_chance import NO
from ...types import DraftBatch, Reason
from .device import Decision
from .summary import pack_line, unpack_verdict


def decide_on_host(
    drafts: DraftBatch, choice: Tensor, best: Tensor, scores: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    """As `device.decide`."""
    lines = lines_of(drafts, choice.tolist(), None if scores is None else scores.tolist(), reason)
    return decision_of(drafts, lines, [[int(not isfinite(value)) for value in row] for row in best.tolist()])


def lines_of(
    drafts: DraftBatch,
    choice: Seq[Choices],
    scores: list[list[float]] | None = None,
    reason: Reason = Reason.RELAXED,
) -> list[list[int]]:
    """The lines of a summary, without the flags of its rows."""
    columns = (x.tolist() for x in (drafts.token, drafts.parent, drafts.depth, drafts.order))
    scored = [None] * drafts.batch if scores is None else scores
    trees = zip(*columns, drafts.length.tolist(), choice, scored, strict=True)
    return [_line(_Tree(*tree), drafts.levels, int(reason)) for tree in trees]


def decision_of(drafts: DraftBatch, lines: list[list[int]], damaged: list[list[int]]) -> Decision:
    """damaged: a flag for every row of a sequence, 1 = it has no distribution."""
    summary = torch.tensor([line + flags for line, flags in zip(lines, damaged, strict=True)], dtype=torch.int64)
    return Decision(unpack_verdict(summary, drafts.levels), summary)


class Choices(Protocol):
    """The target's own token after each row: a list, or drawn when a walk comes to it."""

    def __getitem__(self, row: int, /) -> int: ...


class _Tree(NamedTuple):
    """One sequence of the batch."""

    token: list[int]
    parent: list[int]
    depth: list[int]
    order: list[int]
    length: int
    choice: Choices
    scores: list[float] | None

    def matching(self) -> dict[tuple[int, int], int]:
        """The child of a node that carries a token; of equal siblings the rules take the first in rank."""
        found: dict[tuple[int, int], int] = {}
        for node in range(self.length):
            first = found.setdefault((self.parent[node], self.token[node]), node)
            if self.order[node] < self.order[first]:
                found[self.parent[node], self.token[node]] = node
        return found

    def passing(self) -> dict[int, int]:
        """The child of a node that has a second chance: the best score above NO, of equal ones the first in rank."""
        found: dict[int, int] = {}
        scores = self.scores or []
        for node in range(self.length if scores else 0):
            if scores[node] > NO:
                first = found.setdefault(self.parent[node], node)
                if (-scores[node], self.order[node]) < (-scores[first], self.order[first]):
                    found[self.parent[node]] = node
        return found


def _line(tree: _Tree, levels: int, reason: int) -> list[int]:
    """The line of a summary: down the tree, as far as a child carries the target's token or has a second chance."""
    matching, passing = tree.matching(), tree.passing()
    path: list[int] = []
    reasons: list[int] = []
    at, wanted = -1, tree.choice[0]
    while (child := matching.get((at, wanted), passing.get(at))) is not None:
        path.append(child)
        reasons.append(int(Reason.STANDARD) if tree.token[child] == wanted else reason)
        at, wanted = child, tree.choice[child + 1]  # looked at once a row, and only on the path
    refused = at in tree.parent[: tree.length]
    reasons.append(int(Reason.CORRECTED if refused else Reason.BONUS))
    deepest = max(tree.depth[: tree.length], default=0)
    return pack_line(path, wanted, tree.length, deepest, [tree.token[node] for node in path], reasons, levels)
