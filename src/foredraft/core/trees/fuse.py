"""Several drafters' trees for the same sequences as one: equal prefixes become one path (the fusion of RASD). Pure.

Which nodes are siblings, and which are cut, depends on what the tokens are, so the result is CHOSEN whatever the
drafters made (DESIGN invariant 5): draft distributions are dropped, and rules that ask for them refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...types import DraftBatch
from ...types.drafts import empty_drafts
from .editing import keep, move
from .layout import ancestor_mask

_PADDING = -1  # a token that no node carries
_UNKNOWN = -1.0  # the value of a node whose drafter gave none


def fuse(batches: Seq[DraftBatch], limits: Seq[int]) -> DraftBatch:
    """One trie per sequence of all that the drafters wrote, at most limits[b] nodes.

    `value` is the largest that any drafter gave a node. Beyond the limit nodes of least value go first, never before
    their descendants; nodes without a value count as zero, and equal values go by drafter and by its own order.
    """
    device = next((b.token.device for b in batches if b.token.device.type != "cpu"), batches[0].token.device)
    batches = [move(replace(b, distributions=None, started=None), device) for b in batches]
    if not any(batch.width for batch in batches):
        return empty_drafts(len(limits), device)
    joined = _side_by_side(batches)
    equal = alike(joined, joined)
    first = equal.to(torch.int8).argmax(dim=2)  # [B, N] the first node that carries the same path
    leader = (first == torch.arange(joined.width, device=device)) & (joined.token != _PADDING)
    parent = torch.where(joined.parent >= 0, first.gather(1, joined.parent.clamp(min=0)), -1)
    value = None
    if joined.value is not None:
        value = torch.where(equal, joined.value[:, None, :], _UNKNOWN).amax(dim=2).clamp(min=0)
    merged = replace(joined, parent=parent, value=value)
    return _closed_up(keep(merged, leader & _best(merged, leader, limits)))


def own_nodes(fused: DraftBatch, batch: DraftBatch) -> Tensor:
    """[B, N] the index by which the drafter of `batch` knows each fused node, -1 = it did not write it.

    A drafter that wrote a node wrote its ancestors too, so what it knows of a path is always its beginning.
    """
    if not batch.width:
        return torch.full_like(fused.token, -1)
    equal = alike(fused, batch)
    node = equal.to(torch.int8).argmax(dim=2)
    known = node if batch.source is None else batch.source.gather(1, node)
    return torch.where(equal.any(dim=2), known, -1)


def alike(a: DraftBatch, b: DraftBatch) -> Tensor:
    """[B, N, M] bool: node i of a and node j of b carry the same path.

    Two paths are equal if their last tokens are and their parents' paths are, so every pass is right one level deeper.
    """
    same = (a.token[:, :, None] == b.token[:, None, :]) & a.used()[:, :, None] & b.used()[:, None, :]
    top_a, top_b = (a.parent < 0)[:, :, None], (b.parent < 0)[:, None, :]
    row = a.parent.clamp(min=0)[:, :, None].expand_as(same)
    column = b.parent.clamp(min=0)[:, None, :].expand_as(same)
    equal = same & top_a & top_b
    for _ in range(min(a.levels, b.levels) - 1):
        above = equal.gather(1, row).gather(2, column)
        equal = same & torch.where(top_a | top_b, top_a & top_b, above)
    return equal


def _side_by_side(batches: Seq[DraftBatch]) -> DraftBatch:
    """All columns concatenated; padding lies between them and carries a token of its own."""
    parents, begin = [], 0
    for batch in batches:
        parents.append(torch.where(batch.parent >= 0, batch.parent + begin, -1))
        begin += batch.width
    token = torch.cat([torch.where(b.used(), b.token, _PADDING) for b in batches], dim=1)
    valued = any(batch.value is not None for batch in batches)
    return DraftBatch(
        token=token,
        parent=torch.cat(parents, dim=1),
        depth=torch.cat([batch.depth for batch in batches], dim=1),
        order=torch.arange(begin, device=token.device).expand_as(token),
        length=torch.full_like(batches[0].length, begin),
        branching=sum(batch.branching for batch in batches if batch.width),
        levels=max(batch.levels for batch in batches),
        value=torch.cat([_values(batch) for batch in batches], dim=1) if valued else None,
    )


def _values(batch: DraftBatch) -> Tensor:
    if batch.value is not None:
        return batch.value.to(torch.float32)
    return torch.full_like(batch.token, _UNKNOWN, dtype=torch.float32)


def _best(merged: DraftBatch, leader: Tensor, limits: Seq[int]) -> Tensor:
    """[B, N] bool: the limits[b] nodes of largest value. A node counts for no more than its ancestors do."""
    value = torch.zeros_like(merged.token, dtype=torch.float32) if merged.value is None else merged.value
    above = ancestor_mask(merged.parent, levels=merged.levels)
    falling = torch.where(above, value[:, None, :], torch.inf).amin(dim=2).masked_fill(~leader, -torch.inf)
    order = falling.argsort(dim=1, descending=True, stable=True)  # parents come before children, so they win ties
    place = torch.arange(merged.width, device=value.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, place)
    return rank < torch.tensor(list(limits), device=value.device)[:, None]


def _closed_up(drafts: DraftBatch) -> DraftBatch:
    """Without columns that no sequence uses. A fused tree counts as one drafter's, so sources are numbered from 0."""
    lengths = tuple(drafts.length.tolist())
    token, parent = (torch.where(drafts.used(), x, fill) for x, fill in ((drafts.token, 0), (drafts.parent, -1)))
    drafts = replace(drafts, token=token, parent=parent, source=None, lengths_host=lengths)
    names = ("token", "parent", "depth", "order", "value")
    columns = {name: found[:, : max(lengths)] for name in names if (found := getattr(drafts, name)) is not None}
    return replace(drafts, **columns)
