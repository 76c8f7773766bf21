"""Greedy verdicts by plain Python, for tensors on the host: a walk is quicker there than twenty small operations.

`greedy.decide_reference` says the same in tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...core.verify.second_chance import NO
from ...types import DraftBatch, Reason, Verdict
from .device import Decision


def decide_on_host(
    drafts: DraftBatch, choice: Tensor, best: Tensor, opinion: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    """As `greedy.decide`."""
    columns = (x.tolist() for x in (drafts.token, drafts.parent, drafts.depth, drafts.order))
    scores = [None] * drafts.batch if opinion is None else opinion.tolist()
    trees = zip(*columns, drafts.length.tolist(), choice.tolist(), scores, strict=True)
    levels = drafts.levels
    table = torch.tensor([_line(_Tree(*tree), levels, int(reason)) for tree in trees], dtype=torch.int64)
    path = table[:, 4 : 4 + levels]
    verdict = Verdict(path, table[:, 0], table[:, 1], table[:, 4 + 2 * levels :])
    keep = torch.cat((torch.zeros_like(table[:, :1]), path + 1), dim=1)
    return Decision(verdict, torch.cat((table, (~torch.isfinite(best)).to(torch.int64)), dim=1), keep)


class _Tree(NamedTuple):
    """One sequence of the batch."""

    token: list[int]
    parent: list[int]
    depth: list[int]
    order: list[int]
    length: int
    choice: list[int]
    scores: list[float] | None

    def hits(self) -> dict[tuple[int, int], int]:
        """The child of a node that carries a token; of twins the rules take the first in rank."""
        found: dict[tuple[int, int], int] = {}
        for node in range(self.length):
            first = found.setdefault((self.parent[node], self.token[node]), node)
            if self.order[node] < self.order[first]:
                found[self.parent[node], self.token[node]] = node
        return found

    def likings(self) -> dict[int, int]:
        """The child of a node that opinions favour: the best score above NO, of equal ones the first in rank."""
        found: dict[int, int] = {}
        scores = self.scores or []
        for node in range(self.length if scores else 0):
            if scores[node] > NO:
                first = found.setdefault(self.parent[node], node)
                if (-scores[node], self.order[node]) < (-scores[first], self.order[first]):
                    found[self.parent[node]] = node
        return found


def _line(tree: _Tree, levels: int, why: int) -> list[int]:
    """Down the tree, as far as a child carries the token that the target wants, or is liked: what `Summary.read` takes
    apart.
    """
    hits, likings = tree.hits(), tree.likings()
    path: list[int] = []
    reasons: list[int] = []
    at, told = -1, tree.choice[0]
    while (below := hits.get((at, told), likings.get(at))) is not None:
        path.append(below)
        reasons.append(int(Reason.STANDARD) if tree.token[below] == told else why)
        at, told = below, tree.choice[below + 1]
    refused = at in tree.parent[: tree.length]
    room = levels - len(path)
    reasons += [int(Reason.CORRECTED if refused else Reason.BONUS)] + [0] * room
    scalars = [len(path), told, tree.length, max(tree.depth[: tree.length], default=0)]
    return [*scalars, *path, *[-1] * room, *(tree.token[node] for node in path), *[0] * room, *reasons]
