"""Greedy verification of a batch of draft trees: one program walks down the tree of each sequence.

Writes the verdict and the line of the summary in one launch. `engine.greedy.device.follow` is the reference; columns
of the summary and numbers of the reasons come from the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import DraftBatch

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None


class Followed(NamedTuple):
    """All int64: path [B, D], rows to keep [B, D + 1], reasons [B, D + 1], accepted and token [B], the summary."""

    path: Tensor
    keep: Tensor
    reasons: Tensor
    accepted: Tensor
    token: Tensor
    summary: Tensor


def can_follow(choice: Tensor) -> bool:
    return triton is not None and choice.is_cuda


def follow_trees(
    drafts: DraftBatch,
    choice: Tensor,
    best: Tensor,
    scores: Tensor | None,
    columns: Sequence[int],
    reasons: tuple[int, int, int],
) -> Followed:
    """columns: of the summary, as `engine.greedy.summary.Layout` has them; reasons: second chance, corrected, bonus."""
    (batch, width), levels, device = drafts.token.shape, drafts.levels, drafts.token.device
    tree = [x.contiguous() for x in (drafts.token, drafts.parent, drafts.depth, drafts.order, drafts.length)]
    sizes, across = (levels, levels + 1, levels + 1), choice.shape[1]
    path, keep, whys = (torch.empty((batch, size), dtype=torch.int64, device=device) for size in sizes)
    accepted, token = torch.empty((2, batch), dtype=torch.int64, device=device).unbind(0)
    summary = torch.empty((batch, columns[-1] + across), dtype=torch.int64, device=device)
    given = best if scores is None else scores  # a kernel needs something to point at
    second_chance, corrected, bonus = reasons
    _follow_tree[(batch,)](
        *tree, choice.contiguous(), best.contiguous(), given.contiguous(),
        path, keep, whys, accepted, token, summary, width, across, levels, summary.shape[1], *columns,
        SCORED=scores is not None, REASON=second_chance, CORRECTED=corrected, BONUS=bonus,
        NODES=triton.next_power_of_2(width + 1), LEVELS=triton.next_power_of_2(levels + 1), num_warps=1,
    )  # fmt: skip
    return Followed(path, keep, whys, accepted, token, summary)


if triton is not None:
    NOBODY = tl.constexpr(2**62)
    _SIZES = ("width", "across", "levels", "line")
    _COLUMNS = ("accepted_at", "token_at", "drafted_at", "depth_at", "path_at", "tokens_at", "reasons_at", "damaged_at")

    @triton.jit  # type: ignore[untyped-decorator]
    def _next(  # type: ignore[no-untyped-def]
        wanted, below, own, group, score, SCORED: tl.constexpr, REASON: tl.constexpr
    ):
        """The rank of the child to go to, NOBODY if none, and the reason; `below` marks the children."""
        none = group * 0 + NOBODY
        first = tl.min(tl.where(below & (own == wanted), group, none), axis=0)
        why = first * 0
        if SCORED:
            top = tl.max(tl.where(below, score, -float("inf")), axis=0)
            passing = tl.min(tl.where(below & (score == top) & (score > -float("inf")), group, none), axis=0)
            why = tl.where(first < NOBODY, why, REASON)
            first = tl.where(first < NOBODY, first, passing)
        return first, why

    @triton.jit(do_not_specialize=[*_SIZES, *_COLUMNS])  # type: ignore[untyped-decorator]
    def _follow_tree(  # type: ignore[no-untyped-def]
        token, parent, depth, order, length, choice, best, scores, path, keep, reason, accepted, last, summary,
        width, across, levels, line,
        accepted_at, token_at, drafted_at, depth_at, path_at, tokens_at, reasons_at, damaged_at,
        SCORED: tl.constexpr, REASON: tl.constexpr, CORRECTED: tl.constexpr, BONUS: tl.constexpr,
        NODES: tl.constexpr, LEVELS: tl.constexpr,
    ):  # fmt: skip
        b = tl.program_id(0).to(tl.int64)
        node, level = tl.arange(0, NODES), tl.arange(0, LEVELS)
        count = tl.load(length + b)
        used = (node < count) & (node < width)
        own = tl.load(token + b * width + node, mask=used, other=-1)
        above = tl.load(parent + b * width + node, mask=used, other=-2)
        group = tl.load(order + b * width + node, mask=used, other=0) * NODES + node  # siblings by rank
        score = own
        if SCORED:
            score = tl.load(scores + b * width + node, mask=used, other=-float("inf"))
        deepest = tl.max(tl.load(depth + b * width + node, mask=used, other=0), axis=0)
        at, taken = (count * 0 - 1).to(tl.int64), (count * 0).to(tl.int64)
        wanted = tl.load(choice + b * across)
        nodes = tl.full((LEVELS,), -1, tl.int64)
        tokens, whys = tl.zeros((LEVELS,), tl.int64), tl.zeros((LEVELS,), tl.int64)
        first, why = _next(wanted, used & (above == at), own, group, score, SCORED, REASON)
        while first < NOBODY:  # a child carries the token that the target wants, or passes its second chance
            at = (first % NODES).to(tl.int64)
            nodes = tl.where(level == taken, at, nodes)
            tokens = tl.where(level == taken, tl.load(token + b * width + at), tokens)
            whys = tl.where(level == taken, why, whys)
            taken += 1
            wanted = tl.load(choice + b * across + at + 1)
            first, why = _next(wanted, used & (above == at), own, group, score, SCORED, REASON)
        refused = tl.max((used & (above == at)).to(tl.int32), axis=0)
        whys = tl.where(level == taken, tl.where(refused > 0, CORRECTED, BONUS), whys).to(tl.int64)
        tl.store(path + b * levels + level, nodes, mask=level < levels)
        tl.store(keep + b * (levels + 1) + level + 1, nodes + 1, mask=level < levels)
        tl.store(keep + b * (levels + 1), taken * 0)
        tl.store(reason + b * (levels + 1) + level, whys, mask=level <= levels)
        tl.store(accepted + b, taken)
        tl.store(last + b, wanted)
        here = summary + b * line
        tl.store(here + accepted_at, taken)
        tl.store(here + token_at, wanted)
        tl.store(here + drafted_at, count)
        tl.store(here + depth_at, deepest)
        tl.store(here + path_at + level, nodes, mask=level < levels)
        tl.store(here + tokens_at + level, tokens, mask=level < levels)
        tl.store(here + reasons_at + level, whys, mask=level <= levels)
        score = tl.load(best + b * across + node, mask=node < across, other=0.0).to(tl.float32)
        bad = (score != score) | (tl.abs(score) == float("inf"))
        tl.store(here + damaged_at + node, bad.to(tl.int64), mask=node < across)
