"""Where the new rows of a pass lie, computed on the device from a small slot table, and what each of them sees.

Nothing here looks at a tensor's values from the host, so all of it may run inside a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.trees.layout import ancestor_mask

NOWHERE = -1  # slot of a sequence that only fills a batch, and place of a row that is not stored


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Slot, length and new rows of each sequence of a pass. All [B] int64."""

    slot: Tensor  # NOWHERE = padding
    length: Tensor  # committed tokens
    first: Tensor  # scratch rows that it held before the pass
    count: Tensor  # its new rows; the stream may hold more for it, which then are padding
    begin: Tensor  # row of the stream at which its new rows begin; increasing

    @classmethod
    def of(cls, table: Tensor) -> SlotTable:
        """From [5, B]."""
        return cls(*table.unbind(0))


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the rows of slots lie: pages of the K/V cache, in the order of each slot's text."""

    table: Tensor  # [slots + 1, P] int32; 0 = a page that nobody's text is in; the last line is padding's
    size: int  # rows of a page

    @property
    def capacity(self) -> int:
        """Rows of a slot."""
        return self.table.shape[1] * self.size

    def places(self, slot: Tensor, row: Tensor) -> Tensor:
        """Among the rows of all pages, those of rows of slots (NOWHERE: padding's)."""
        page = self.table[slot, (row // self.size).clamp(max=self.table.shape[1] - 1)]
        return page.to(torch.int64) * self.size + row % self.size


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What kernels need to know of T rows of B sequences with at most W new rows each; int64 unless said."""

    slot: Tensor  # [B]
    length: Tensor  # [B]
    count: Tensor  # [B]
    begin: Tensor  # [B]
    end: Tensor  # [B] committed tokens and scratch rows, the new ones included
    position: Tensor  # [T] for rotations
    place: Tensor  # [T] among the rows of all pages, the one that a new row is written to; NOWHERE = not at all
    visible: Tensor  # [B, W, S] uint8: scratch rows that each new row sees
    pages: Pages


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that bound rows and positions, and where rows lie."""

    capacity: int  # rows of a slot
    positions: int
    pages: Pages


def lay_out(
    slot_table: SlotTable, depth: Tensor, parent: Tensor | None, width: int, seen: Tensor, limits: Limits
) -> RowLayout:
    """The layout of rows with depth [T] and parent [T] (None = chains). Enters into `seen` what the new rows see.

    seen [slots + 1, S, S] says which scratch rows every scratch row sees; its last slot takes what padding writes.
    """
    device = depth.device
    owner = torch.searchsorted(slot_table.begin, torch.arange(len(depth), device=device), right=True) - 1  # [T]
    number = torch.arange(len(depth), device=device) - slot_table.begin[owner]  # among its sequence's new rows
    row = slot_table.length[owner] + slot_table.first[owner] + number
    stored = (number < slot_table.count[owner]) & (row < limits.capacity)
    column = torch.arange(width, device=device)
    cell = (slot_table.begin[:, None] + column).clamp(max=len(depth) - 1)  # [B, W]; beyond the count any row
    visible = see(seen, slot_table.slot, slot_table.first, None if parent is None else parent[cell], width)
    real = column < slot_table.count[:, None]
    number = (slot_table.first[:, None] + column).clamp(max=seen.shape[1] - 1)
    seen[torch.where(real, slot_table.slot[:, None], NOWHERE), number] = visible
    return RowLayout(
        slot=slot_table.slot,
        length=slot_table.length,
        count=slot_table.count,
        begin=slot_table.begin,
        end=(slot_table.length + slot_table.first + slot_table.count).clamp(max=limits.capacity),
        position=(slot_table.length[owner] + depth).clamp(max=limits.positions - 1),
        place=torch.where(stored, limits.pages.places(slot_table.slot[owner], row), NOWHERE),
        visible=visible,
        pages=limits.pages,
    )


def lay_out_prompts(slot_table: SlotTable, rows: int, limits: Limits) -> RowLayout:
    """The layout of `rows` rows that go on with committed texts, one run a text; nothing of it is scratch."""
    turn = torch.arange(rows, device=slot_table.slot.device)
    owner = torch.searchsorted(slot_table.begin.contiguous(), turn, right=True) - 1  # [T]
    number = turn - slot_table.begin[owner]
    row = slot_table.length[owner] + number
    stored = (number < slot_table.count[owner]) & (row < limits.capacity)
    return RowLayout(
        slot=slot_table.slot.contiguous(),
        length=slot_table.length.contiguous(),
        count=slot_table.count.contiguous(),
        begin=slot_table.begin.contiguous(),
        end=slot_table.length + slot_table.count,
        position=row.clamp(max=limits.positions - 1),
        place=torch.where(stored, limits.pages.places(slot_table.slot[owner], row), NOWHERE),
        visible=row.new_empty((len(slot_table.slot), rows, 0), dtype=torch.uint8),
        pages=limits.pages,
    )


def see(seen: Tensor, slot: Tensor, first: Tensor, parent: Tensor | None, width: int) -> Tensor:
    """[B, W, S] uint8: the scratch rows that each of `width` new rows sees; parent [B, W], None = they go on a chain.

    New row n of sequence b has number first[b] + n. Parents are numbers too, -1 = the committed text.
    """
    number = first[:, None] + torch.arange(width, device=first.device)
    column = torch.arange(seen.shape[1], device=first.device)
    if parent is None:
        above = seen[slot, (first - 1).clamp(min=0)] * (first > 0)[:, None].to(seen.dtype)  # [B, S]
        run = (column >= first[:, None, None]) & (column <= number[:, :, None])
        return above[:, None, :] | run.to(seen.dtype)
    among = parent - first[:, None]  # parents among the new rows; what padding says is kept inside the block
    earlier = ((parent >= 0) & (among < 0))[:, :, None].to(seen.dtype)
    above = seen[slot[:, None], parent.clamp(min=0, max=seen.shape[1] - 1)] * earlier  # [B, W, S]
    own = (column == number[:, :, None]).to(seen.dtype)
    line = ancestor_mask(torch.where((among >= 0) & (among < width), among, -1)).to(torch.float32)  # [B, W, W]
    return (line @ (above | own).to(torch.float32) > 0).to(seen.dtype)


def table_of(columns: Sequence[Sequence[int]], batch: int, device: torch.device) -> Tensor:
    """[5, batch] on the host, from the columns of a slot_table as the host knows them; what is missing is padding."""
    slot, *others = columns
    spare = batch - len(slot)
    end = others[-1][-1] + others[-2][-1]  # padding begins after the last row
    fill = [0, 0, 0, end]
    lines = [[*slot, *[NOWHERE] * spare], *([*row, *[f] * spare] for row, f in zip(others, fill, strict=True))]
    return pinned(lines, device)


def upload(values: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Numbers of the host on the device, without waiting for what the device is doing."""
    return pinned(values, device).to(device, non_blocking=True)


def pinned(values: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Numbers on the host that `device` can fetch by itself; their memory is not used again before it has."""
    return torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
