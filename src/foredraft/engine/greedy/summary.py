"""What the host must know of a round, in one small block: the copy that every round makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import DraftBatch, Reason, TreeVerdict, Verdict

_REASONS = list(Reason)


def summarise(drafts: DraftBatch, verdict: Verdict, bad: Tensor) -> Tensor:
    """[B, 4 + 3 D + 1 + N + 1] int64 on the device; `Summary.read` takes it apart."""
    tokens = verdict.path
    deepest = drafts.length
    if drafts.width:
        tokens = drafts.token.gather(1, verdict.path.clamp(min=0))
        deepest = (drafts.depth * drafts.used()).amax(dim=1)
    scalars = torch.stack((verdict.accepted, verdict.token, drafts.length, deepest), dim=1)
    return torch.cat((scalars, verdict.path, tokens, verdict.reason, bad.to(torch.int64)), dim=1)


@dataclass(slots=True)  # made for every request and round
class Summary:
    """One sequence's round."""

    verdict: TreeVerdict
    tokens: list[int]  # those of the path, and the one behind it
    drafted: int
    depth: int  # of the deepest draft
    damaged: bool  # whether a distribution on the path was no distribution; rows off the path may be void

    @classmethod
    def read(cls, line: list[int], levels: int) -> Summary:
        accepted, token, drafted, depth = line[:4]
        tokens_at = 4 + levels
        reasons_at, bad = tokens_at + levels, tokens_at + 2 * levels + 1
        path, tokens = line[4 : 4 + accepted], line[tokens_at : tokens_at + accepted]
        tokens.append(token)
        reasons = [_REASONS[r] for r in line[reasons_at : reasons_at + accepted + 1]]
        damaged = 1 in line[bad:] and any(line[bad + row] for row in (0, *(node + 1 for node in path)))
        return cls(TreeVerdict(path, token, reasons), tokens, drafted, depth, damaged)
