"""Greedy verdicts: at temperature 0 every exact rule follows the target's likeliest tokens as far as they are drafted.

A rule with opinions (`core.verify.second_chance`) goes on where an exact one stops: to the child with the best score above NO,
of equal ones to the first in rank. `decide` works verdicts out for a batch, with what the host must know of them: in
one kernel on a GPU, else by `follow` and `summarise`, the references.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.trees.layout import ancestor_mask
from ...core.verify.second_chance import NO
from ...types import DraftBatch, Reason, Verdict
from .summary import summarise

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and its summary, and the scratch rows [B, D + 1] of the accepted path: the root's, then the nodes'."""

    verdict: Verdict
    summary: Tensor
    keep: Tensor


def decide(
    drafts: DraftBatch, choice: Tensor, best: Tensor, opinion: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    """choice and best [B, R]: the target's likeliest token behind every row, and its logit.

    R is N + 1, or less where no sequence has N nodes. opinion [B, N]: scores of all nodes, NO where one does not pass;
    `reason` is that of tokens that stand by it.
    """
    if triton is not None and choice.is_cuda:
        return decide_fused(drafts, choice, best, opinion, reason)
    return decide_reference(drafts, choice, best, opinion, reason)


def decide_reference(
    drafts: DraftBatch, choice: Tensor, best: Tensor, opinion: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    verdict = follow(drafts, choice, opinion, reason)
    keep = torch.cat((torch.zeros_like(verdict.accepted)[:, None], verdict.path + 1), dim=1)
    return Decision(verdict, summarise(drafts, verdict, ~torch.isfinite(best)), keep)


def decide_fused(
    drafts: DraftBatch, choice: Tensor, best: Tensor, opinion: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    """One program walks down the tree of each sequence."""
    (batch, width), levels, device = drafts.token.shape, drafts.levels, drafts.token.device
    columns = [x.contiguous() for x in (drafts.token, drafts.parent, drafts.depth, drafts.order, drafts.length)]
    path, keep, reasons = (
        torch.empty((batch, size), dtype=torch.int64, device=device) for size in (levels, levels + 1, levels + 1)
    )
    accepted, token = torch.empty((2, batch), dtype=torch.int64, device=device).unbind(0)
    across = choice.shape[1]
    summary = torch.empty((batch, 4 + 3 * levels + 1 + across), dtype=torch.int64, device=device)
    scores = best if opinion is None else opinion  # a kernel wants something to point at
    _follow[(batch,)](
        *columns, choice.contiguous(), best.contiguous(), scores.contiguous(),
        path, keep, reasons, accepted, token, summary, width, across, levels, summary.shape[1],
        ASKS=opinion is not None, WHY=int(reason), CORRECTED=int(Reason.CORRECTED), BONUS=int(Reason.BONUS),
        NODES=triton.next_power_of_2(width + 1), LEVELS=triton.next_power_of_2(levels + 1), num_warps=1,
    )  # fmt: skip
    return Decision(Verdict(path, accepted, token, reasons), summary, keep)


def follow(
    drafts: DraftBatch, choice: Tensor, opinion: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Verdict:
    """The verdict that follows choice, the target's token behind every row that is used, as far as it is drafted, and
    opinions where it is not.
    """
    batch, width = drafts.token.shape
    device = choice.device
    index = torch.arange(width, device=device).expand(batch, width)
    used = drafts.used()
    hit = used & (drafts.token == choice.gather(1, (drafts.parent + 1).clamp(max=choice.shape[1] - 1)))
    hit &= ~_repeats_earlier_sibling(drafts, hit)
    liked = torch.zeros_like(hit) if opinion is None else _liked(drafts, hit, opinion)
    taken = hit | liked
    # A node is on the path if it and all its ancestors are taken: one at each depth.
    missed = ancestor_mask(drafts.parent, levels=max(drafts.levels, 1)) & ~taken[:, None, :]
    on_path = taken & ~missed.any(dim=2)
    place = torch.where(on_path, drafts.depth - 1, drafts.levels)
    path = torch.full((batch, drafts.levels + 1), -1, dtype=torch.int64, device=device)
    path = path.scatter_(1, place, torch.where(on_path, index, -1))[:, : drafts.levels]
    accepted = on_path.sum(dim=1)
    last = torch.where(on_path, index, -1).amax(dim=1) if width else torch.full_like(accepted, -1)
    token = choice.gather(1, last[:, None] + 1)[:, 0]
    refused = (used & (drafts.parent == last[:, None])).any(dim=1)
    end = torch.where(refused, int(Reason.CORRECTED), int(Reason.BONUS))
    reasons = torch.zeros((batch, drafts.levels + 1), dtype=torch.int64, device=device)
    reasons.scatter_(1, place, (on_path & liked) * int(reason))
    return Verdict(path, accepted, token, reasons.scatter_(1, accepted[:, None], end[:, None]))


def _repeats_earlier_sibling(drafts: DraftBatch, hit: Tensor) -> Tensor:
    """[B, N] bool: a sibling that ranks before the node is hit too, so carries the same token. Rules take the first."""
    if drafts.branching <= 1:
        return torch.zeros_like(hit)
    same = (drafts.parent[:, :, None] == drafts.parent[:, None, :]) & hit[:, None, :]
    return (same & (drafts.order[:, None, :] < drafts.order[:, :, None])).any(dim=2)


def _liked(drafts: DraftBatch, hit: Tensor, opinion: Tensor) -> Tensor:
    """[B, N] bool: no sibling is hit, and the node has the best score of them above NO, or is the first that has."""
    used = drafts.used()
    same = (drafts.parent[:, :, None] == drafts.parent[:, None, :]) & used[:, None, :]
    own, other = opinion[:, :, None], opinion[:, None, :]
    elder = drafts.order[:, None, :] < drafts.order[:, :, None]
    beaten = same & (hit[:, None, :] | (other > own) | ((other == own) & elder))
    return used & (opinion > NO) & ~beaten.any(dim=2)


if triton is not None:
    NOBODY = tl.constexpr(2**62)

    @triton.jit  # type: ignore[untyped-decorator]
    def _next(told, below, own, group, score, ASKS: tl.constexpr, WHY: tl.constexpr):  # type: ignore[no-untyped-def]
        """The rank of the child to go to, NOBODY if none, and the reason; `below` marks the children."""
        none = group * 0 + NOBODY
        first = tl.min(tl.where(below & (own == told), group, none), axis=0)
        why = first * 0
        if ASKS:
            top = tl.max(tl.where(below, score, -float("inf")), axis=0)
            liked = tl.min(tl.where(below & (score == top) & (score > -float("inf")), group, none), axis=0)
            why = tl.where(first < NOBODY, why, WHY)
            first = tl.where(first < NOBODY, first, liked)
        return first, why

    @triton.jit(do_not_specialize=["width", "across", "levels", "line"])  # type: ignore[untyped-decorator]
    def _follow(  # type: ignore[no-untyped-def]
        token, parent, depth, order, length, choice, best, opinion, path, keep, reason, accepted, last, summary,
        width, across, levels, line, ASKS: tl.constexpr, WHY: tl.constexpr,
        CORRECTED: tl.constexpr, BONUS: tl.constexpr, NODES: tl.constexpr, LEVELS: tl.constexpr,
    ):  # fmt: skip
        b = tl.program_id(0).to(tl.int64)
        node, level = tl.arange(0, NODES), tl.arange(0, LEVELS)
        count = tl.load(length + b)
        used = (node < count) & (node < width)
        own = tl.load(token + b * width + node, mask=used, other=-1)
        above = tl.load(parent + b * width + node, mask=used, other=-2)
        group = tl.load(order + b * width + node, mask=used, other=0) * NODES + node  # siblings by rank
        score = own
        if ASKS:
            score = tl.load(opinion + b * width + node, mask=used, other=-float("inf"))
        deepest = tl.max(tl.load(depth + b * width + node, mask=used, other=0), axis=0)
        at, taken = (count * 0 - 1).to(tl.int64), (count * 0).to(tl.int64)
        told = tl.load(choice + b * across)
        nodes = tl.full((LEVELS,), -1, tl.int64)
        tokens, whys = tl.zeros((LEVELS,), tl.int64), tl.zeros((LEVELS,), tl.int64)
        first, why = _next(told, used & (above == at), own, group, score, ASKS, WHY)
        while first < NOBODY:  # a child of the last node carries the token that the target wants, or is liked
            at = (first % NODES).to(tl.int64)
            nodes = tl.where(level == taken, at, nodes)
            tokens = tl.where(level == taken, tl.load(token + b * width + at), tokens)
            whys = tl.where(level == taken, why, whys)
            taken += 1
            told = tl.load(choice + b * across + at + 1)
            first, why = _next(told, used & (above == at), own, group, score, ASKS, WHY)
        refused = tl.max((used & (above == at)).to(tl.int32), axis=0)
        whys = tl.where(level == taken, tl.where(refused > 0, CORRECTED, BONUS), whys).to(tl.int64)
        tl.store(path + b * levels + level, nodes, mask=level < levels)
        tl.store(keep + b * (levels + 1) + level + 1, nodes + 1, mask=level < levels)
        tl.store(keep + b * (levels + 1), taken * 0)
        tl.store(reason + b * (levels + 1) + level, whys, mask=level <= levels)
        tl.store(accepted + b, taken)
        tl.store(last + b, told)
        here = summary + b * line
        tl.store(here, taken)
        tl.store(here + 1, told)
        tl.store(here + 2, count)
        tl.store(here + 3, deepest)
        tl.store(here + 4 + level, nodes, mask=level < levels)
        tl.store(here + 4 + levels + level, tokens, mask=level < levels)
        tl.store(here + 4 + 2 * levels + level, whys, mask=level <= levels)
        score = tl.load(best + b * across + node, mask=node < across, other=0.0).to(tl.float32)
        bad = (score != score) | (tl.abs(score) == float("inf"))
        tl.store(here + 5 + 3 * levels + node, bad.to(tl.int64), mask=node < across)
