"""Cutting, choosing and moving batches of drafts. Nothing here draws a token or looks at a target's distribution.

Invariant 5 is the caller's duty: dropping drawn nodes because of what they are makes the rest CHOSEN.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...types import Distribution, Distributions, DraftBatch, Kind
from ..distributions.tensors import DenseDistribution, DraftTable

_COLUMNS = ("token", "parent", "depth", "order", "multiplicity", "node_kind", "value", "source")
_BATCHED = (*_COLUMNS, "states")
_WHERE = ("token", "parent", "depth", "order", "source")


def cut(drafts: DraftBatch, limits: Seq[int]) -> DraftBatch:
    """At most the first limits[b] nodes of each sequence; any prefix is ancestor-closed."""
    kept = tuple(min(n, max(0, limit)) for n, limit in zip(drafts.lengths(), limits, strict=True))
    if kept == drafts.lengths():
        return drafts
    levels = min(drafts.levels, max(kept)) if drafts.branching <= 1 else drafts.levels
    length = torch.tensor(kept)
    if drafts.token.is_cuda:  # a copy that nobody waits for
        length = length.pin_memory().to(drafts.token.device, non_blocking=True)
    return replace(drafts, length=length, lengths_host=kept, levels=levels)


def keep(drafts: DraftBatch, mask: Tensor) -> DraftBatch:
    """Only the nodes of [B, N] `mask`, closed up and relinked. The mask must hold every kept node's ancestors."""
    mask = mask & drafts.used()
    siblings = (drafts.parent[:, :, None] == drafts.parent[:, None, :]) & mask[:, None, :]
    order = (siblings & (drafts.order[:, None, :] < drafts.order[:, :, None])).sum(dim=2)
    kept_first = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)
    drafts = reorder(replace(drafts, order=order), kept_first)
    return replace(drafts, length=mask.sum(dim=1), lengths_host=None)


def reorder(drafts: DraftBatch, permutation: Tensor) -> DraftBatch:
    """The same trees with node permutation[b, i] at place i. Parents must stay before their children.

    Sibling ranks, and with them the verdict's distribution, do not change; distributions follow their nodes.
    """
    here = torch.arange(drafts.width, device=permutation.device).expand_as(permutation).contiguous()
    place = torch.empty_like(permutation).scatter_(1, permutation, here)
    parent = torch.where(drafts.parent >= 0, place.gather(1, drafts.parent.clamp(min=0)), -1)
    changed = {"parent": parent, "source": here if drafts.source is None else drafts.source}
    moved = {
        name: column.gather(1, permutation)
        for name in _COLUMNS
        if (column := changed.get(name, getattr(drafts, name))) is not None
    }
    distributions = None if drafts.distributions is None else RowsMoved(drafts.distributions, permutation)
    states = drafts.states
    if states is not None:
        states = states.gather(1, permutation[:, :, None].expand(-1, -1, states.shape[2]))
    # Rows of a started pass cannot change places.
    return replace(drafts, **moved, distributions=distributions, states=states, started=None)


def part(drafts: DraftBatch, index: Seq[int]) -> DraftBatch:
    """The drafts of some of the sequences."""
    if list(index) == list(range(drafts.batch)):
        return drafts
    which: Tensor | slice
    if isinstance(index, range) and index.step == 1:  # without a copy from the host, which a device would wait for
        which = slice(index.start, index.stop)
        places = torch.arange(index.start, index.stop, device=drafts.token.device)
    else:
        which = places = torch.tensor(list(index), dtype=torch.int64, device=drafts.token.device)
    columns = {name: column[which] for name in _BATCHED if (column := getattr(drafts, name)) is not None}
    host = None if drafts.lengths_host is None else tuple(drafts.lengths_host[i] for i in index)
    distributions = drafts.distributions
    if isinstance(distributions, DraftTable):
        distributions = replace(distributions, probs=distributions.probs[which])
    elif distributions is not None:
        distributions = DistributionsPart(distributions, places, drafts.batch)
    started = drafts.started and replace(drafts.started, streams=drafts.started.streams[which])
    return replace(
        drafts, **columns, length=drafts.length[which], lengths_host=host, distributions=distributions, started=started
    )


def join(parts: Seq[tuple[Seq[int], DraftBatch]], batch: int) -> DraftBatch:
    """Drafts of one kind of groups of sequences as one batch; (indices, drafts) for each group, none for the others."""
    if len(parts) == 1 and list(parts[0][0]) == list(range(batch)):
        return parts[0][1]
    width, device = max(drafts.width for _, drafts in parts), parts[0][1].token.device
    columns = {name: torch.zeros((batch, width), dtype=torch.int64, device=device) for name in _WHERE}
    lengths = [0] * batch
    for who, drafts in parts:
        rows = torch.tensor(list(who), device=device)
        for name, column in columns.items():
            column[rows, : drafts.width] = _column(drafts, name).to(device)
        for b, length in zip(who, drafts.lengths(), strict=True):
            lengths[b] = length
    return DraftBatch(
        token=columns["token"],
        parent=columns["parent"],
        depth=columns["depth"],
        order=columns["order"],
        length=torch.tensor(lengths, device=device),
        kind=parts[0][1].kind,
        branching=max(drafts.branching for _, drafts in parts),
        levels=max(drafts.levels for _, drafts in parts),
        distributions=_joined(parts),
        multiplicity=_multiplicities(parts, batch, width),
        source=columns["source"],
        lengths_host=tuple(lengths),
    )


def _joined(parts: Seq[tuple[Seq[int], DraftBatch]]) -> Distributions | None:
    found = [
        (torch.tensor(list(who), device=drafts.token.device), drafts.width, drafts.distributions)
        for who, drafts in parts
        if drafts.distributions is not None and drafts.kind is not Kind.CHOSEN
    ]
    return DistributionsJoined(tuple(found)) if found else None


def _multiplicities(parts: Seq[tuple[Seq[int], DraftBatch]], batch: int, width: int) -> Tensor | None:
    if all(drafts.multiplicity is None for _, drafts in parts):
        return None
    counts = torch.ones((batch, width), dtype=torch.int64, device=parts[0][1].token.device)
    for who, drafts in parts:
        if drafts.multiplicity is not None:
            counts[torch.tensor(list(who), device=counts.device), : drafts.width] = drafts.multiplicity
    return counts


def among(drafts: DraftBatch, index: Seq[int], batch: int) -> DraftBatch:
    """The drafts of sequences `index` (increasing) of a larger batch, in which the others have none."""
    if len(index) == batch:
        return drafts
    place = [index.index(b) if b in index else 0 for b in range(batch)]
    wide = part(replace(drafts, distributions=None, started=None), place)
    wide = cut(wide, [wide.width if b in index else 0 for b in range(batch)])
    if drafts.distributions is None:
        return wide
    device = drafts.token.device
    distributions = DistributionsAmong(
        drafts.distributions, torch.tensor(list(index), device=device), torch.tensor(place, device=device)
    )
    return replace(wide, distributions=distributions)


@dataclass(frozen=True, slots=True)
class DistributionsAmong:
    """Distributions of some sequences of a larger batch; for the others, which have no drawn nodes, any will do."""

    distributions: Distributions
    index: Tensor  # [b]
    place: Tensor  # [B]

    def at(self, row: Tensor) -> Distribution:
        return self.distributions.at(row[self.index]).choose(self.place)


@dataclass(frozen=True, slots=True)
class DistributionsJoined:
    """Distributions of several groups of sequences; for sequences of none, which have no drawn nodes, zeros."""

    parts: tuple[tuple[Tensor, int, Distributions], ...]  # sequences of a group, its most nodes, its distributions

    def at(self, row: Tensor) -> Distribution:
        rows = [(who, inner.at(row[who].clamp(max=width)).dense()) for who, width, inner in self.parts]
        whole = rows[0][1].new_zeros((len(row), rows[0][1].shape[1]))
        for who, dense in rows:
            whole[who] = dense
        return DenseDistribution(whole)


def _column(drafts: DraftBatch, name: str) -> Tensor:
    column: Tensor | None = getattr(drafts, name)
    if column is None:  # a drafter that has not renumbered its nodes
        return torch.arange(drafts.width, device=drafts.token.device).expand_as(drafts.token)
    return column


def move(drafts: DraftBatch, device: torch.device) -> DraftBatch:
    """The same drafts on another device; distributions stay where they are and are copied row by row when visited."""
    if drafts.token.device == device:
        return drafts
    columns = {name: column for name in _BATCHED if (column := getattr(drafts, name)) is not None}
    numbers = [name for name, column in columns.items() if column.dtype == torch.int64 and column.dim() == 2]
    # Whole numbers travel together, and nobody waits for them: every copy by itself would stop a GPU's work.
    length = drafts.length[:, None].to(torch.int64)
    block = torch.cat([columns.pop(name) for name in numbers] + [length], dim=1)
    if device.type == "cuda" and block.device.type == "cpu":
        block = block.pin_memory()
    parts = torch.split(block.to(device, non_blocking=True), [drafts.width] * len(numbers) + [1], dim=1)
    moved: dict[str, Any] = {name: column.to(device) for name, column in columns.items()}
    moved |= zip(numbers, parts[:-1], strict=True)
    distributions = (
        None
        if drafts.distributions is None
        else DistributionsElsewhere(drafts.distributions, drafts.token.device, device)
    )
    return replace(drafts, **moved, length=parts[-1][:, 0], distributions=distributions)


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Distributions of a tree whose nodes have changed places."""

    distributions: Distributions
    old: Tensor  # [B, N] former index of each node

    def at(self, row: Tensor) -> Distribution:
        former = self.old.gather(1, (row - 1).clamp(min=0)[:, None])[:, 0] + 1
        return self.distributions.at(torch.where(row > 0, former, 0))


@dataclass(frozen=True, slots=True)
class DistributionsPart:
    """Distributions of some sequences of a larger batch."""

    distributions: Distributions
    index: Tensor  # [b]
    batch: int

    def at(self, row: Tensor) -> Distribution:
        whole = torch.zeros(self.batch, dtype=torch.int64, device=row.device)
        return self.distributions.at(whole.index_copy(0, self.index, row)).choose(self.index)


@dataclass(frozen=True, slots=True)
class DistributionsElsewhere:
    """Distributions that live on a drafter's device and are asked for on the target's."""

    distributions: Distributions
    home: torch.device
    device: torch.device

    def at(self, row: Tensor) -> Distribution:
        return self.distributions.at(row.to(self.home)).to(self.device)
