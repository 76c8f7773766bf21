"""Greedy verdicts by plain Python, for tensors on the host: a walk is quicker there than twenty small operations.

`greedy.decide_twin` says the same in tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import DraftBatch, Reason, Verdict
from .greedy import Decision


def decide_on_host(drafts: DraftBatch, choice: Tensor, best: Tensor) -> Decision:
    """As `greedy.decide`."""
    token, parent, depth, order = (x.tolist() for x in (drafts.token, drafts.parent, drafts.depth, drafts.order))
    levels, trees = drafts.levels, enumerate(zip(drafts.length.tolist(), choice.tolist(), strict=True))
    lines = [_line(token[b], parent[b], depth[b], order[b], length, told, levels) for b, (length, told) in trees]
    table = torch.tensor(lines, dtype=torch.int64)
    path = table[:, 4 : 4 + levels]
    verdict = Verdict(path, table[:, 0], table[:, 1], table[:, 4 + 2 * levels :])
    keep = torch.cat((torch.zeros_like(table[:, :1]), path + 1), dim=1)
    return Decision(verdict, torch.cat((table, (~torch.isfinite(best)).to(torch.int64)), dim=1), keep)


def _line(
    token: list[int], parent: list[int], depth: list[int], order: list[int], length: int, choice: list[int], levels: int
) -> list[int]:
    """Down the tree, as far as a child carries the token that the target wants: what `Summary.read` takes apart."""
    child: dict[tuple[int, int], int] = {}
    for node in range(length):
        first = child.setdefault((parent[node], token[node]), node)
        if order[node] < order[first]:  # of twins the rules take the first in rank
            child[parent[node], token[node]] = node
    path: list[int] = []
    at, told = -1, choice[0]
    while (below := child.get((at, told))) is not None:
        path.append(below)
        at, told = below, choice[below + 1]
    refused = at in parent[:length]
    room = levels - len(path)
    reasons = [0] * len(path) + [int(Reason.CORRECTED if refused else Reason.BONUS)] + [0] * room
    scalars = [len(path), told, length, max(depth[:length], default=0)]
    return [*scalars, *path, *[-1] * room, *(token[node] for node in path), *[0] * room, *reasons]
