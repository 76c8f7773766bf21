"""What the host must know of a round, in one small block of numbers: the copy that every round makes.

This file owns the layout of that block. Its writers (`summarise` in tensors, `pack_line` on the host, the kernel of
`device.py`) and its reader (`Summary.read`) take every column from here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...types import DraftBatch, Reason, TreeVerdict, Verdict

_REASONS = list(Reason)


class Layout(NamedTuple):
    """First column of each part of a line, for drafts of at most D levels; the first four are single numbers."""

    accepted: int
    token: int  # the one after the accepted path
    drafted: int
    depth: int  # of the deepest draft
    path: int  # D nodes, -1 beyond the accepted ones
    tokens: int  # D tokens of those nodes
    reasons: int  # D + 1
    damaged: int  # one flag for every row of the pass, to the end of the line


@cache
def layout(levels: int) -> Layout:
    return Layout(0, 1, 2, 3, 4, 4 + levels, 4 + 2 * levels, 5 + 3 * levels)


def summarise(drafts: DraftBatch, verdict: Verdict, damaged: Tensor) -> Tensor:
    """[B, columns] int64 on the device; damaged [B, rows]: rows without a distribution."""
    tokens = verdict.path
    deepest = drafts.length
    if drafts.width:
        tokens = drafts.token.gather(1, verdict.path.clamp(min=0))
        deepest = (drafts.depth * drafts.used()).amax(dim=1)
    scalars = torch.stack((verdict.accepted, verdict.token, drafts.length, deepest), dim=1)
    return torch.cat((scalars, verdict.path, tokens, verdict.reason, damaged.to(torch.int64)), dim=1)


def pack_line(
    path: list[int], token: int, drafted: int, depth: int, tokens: Seq[int], reasons: Seq[int], levels: int
) -> list[int]:
    """The line of one sequence on the host, without the flags of its rows."""
    room = [0] * (levels - len(path))
    scalars = (len(path), token, drafted, depth)
    return [*scalars, *path, *(-1 for _ in room), *tokens, *room, *reasons, *room]


def unpack_verdict(lines: Tensor, levels: int) -> Verdict:
    """The verdict that lines [B, columns] tell."""
    at = layout(levels)
    path, reasons = lines[:, at.path : at.tokens], lines[:, at.reasons : at.damaged]
    return Verdict(path, lines[:, at.accepted], lines[:, at.token], reasons)


def token_of(line: list[int]) -> int:
    """The token after the accepted path."""
    return line[layout(0).token]


@dataclass(slots=True)  # made for every request and round
class Summary:
    """One sequence's round."""

    verdict: TreeVerdict
    tokens: list[int]  # those of the path, and the one after it
    drafted: int
    depth: int  # of the deepest draft
    damaged: bool  # whether a distribution on the path was none; rows off the path may be void

    @classmethod
    def read(cls, line: list[int], levels: int) -> Summary:
        at = layout(levels)
        accepted, token, drafted, depth = line[: at.path]
        path, tokens = line[at.path : at.path + accepted], line[at.tokens : at.tokens + accepted]
        tokens.append(token)
        reasons = [_REASONS[r] for r in line[at.reasons : at.reasons + accepted + 1]]
        rows = (0, *(node + 1 for node in path))
        damaged = 1 in line[at.damaged :] and any(line[at.damaged + row] for row in rows)
        return cls(TreeVerdict(path, token, reasons), tokens, drafted, depth, damaged)
