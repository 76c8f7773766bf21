"""Packed rows padded to cells: every sequence of a pass gets as many, so that its shape is known beforehand.

One kernel on a GPU, where the same in torch takes some fifty launches; those are the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..row_layout import Limits, RowLayout, SlotTable, lay_out

try:
    import triton

    from ...kernels.padded_rows import pad_rows_kernel
except ImportError:  # a CPU build of torch comes without it
    triton = None

BLOCK = 1024  # channels of an embedding that are copied together


def pad_rows(
    slot_table: SlotTable, width: int, given: Tensor, depth: Tensor, parent: Tensor | None, seen: Tensor, limits: Limits
) -> tuple[RowLayout, Tensor]:
    """The layout of `width` cells for each sequence, and what was given ([T] tokens or [T, d] embeddings), by cells.

    Rows come packed, as the slot table says; padding repeats some row. `lay_out` says what becomes of `seen`.
    """
    if triton is None or not depth.is_cuda:
        return pad_rows_reference(slot_table, width, given, depth, parent, seen, limits)
    return pad_rows_fused(slot_table, width, given, depth, parent, seen, limits)


def pad_rows_reference(
    slot_table: SlotTable, width: int, given: Tensor, depth: Tensor, parent: Tensor | None, seen: Tensor, limits: Limits
) -> tuple[RowLayout, Tensor]:
    column = torch.arange(width, device=depth.device)
    cell = (
        (slot_table.begin[:, None] + torch.minimum(column, (slot_table.count - 1)[:, None]))
        .clamp(0, len(depth) - 1)
        .flatten()
    )
    begin = torch.arange(len(slot_table.slot), device=depth.device) * width
    even = SlotTable(slot_table.slot, slot_table.length, slot_table.first, slot_table.count, begin)
    links = None if parent is None else parent[cell]
    return lay_out(even, depth[cell], links, width, seen, limits), given[cell]


def pad_rows_fused(
    slot_table: SlotTable, width: int, given: Tensor, depth: Tensor, parent: Tensor | None, seen: Tensor, limits: Limits
) -> tuple[RowLayout, Tensor]:
    """A program for each cell. No program reads a row of `seen` that another writes: parents are older rows."""
    batch, reach, pages = len(slot_table.slot), seen.shape[1], limits.pages
    begin, end = slot_table.slot.new_empty((2, batch)).unbind(0)
    position, place = slot_table.slot.new_empty((2, batch * width)).unbind(0)
    visible = seen.new_empty((batch, width, reach))
    laid = given.new_empty((batch * width, *given.shape[1:]))
    given = given.contiguous()
    channels = given.numel() // max(1, len(given))
    columns = [
        column.contiguous()
        for column in (slot_table.slot, slot_table.length, slot_table.first, slot_table.count, slot_table.begin)
    ]
    pad_rows_kernel[(batch * width,)](
        *columns, depth.contiguous(), depth if parent is None else parent.contiguous(), given, seen, pages.table,
        begin, end, position, place, visible, laid,
        len(depth), width, channels, len(seen), limits.capacity, limits.positions, pages.table.shape[1],
        PAGE=pages.size, REACH=reach, SEEN=triton.next_power_of_2(reach), CHAIN=parent is None,
        BLOCK=min(BLOCK, triton.next_power_of_2(channels)), num_warps=1 if channels == 1 else 4,
    )  # fmt: skip
    slot, length, _, count, _ = columns
    return RowLayout(slot, length, count, begin, end, position, place, visible, pages), laid
