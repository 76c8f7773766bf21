"""Packed rows spread out to cells: every sequence of a pass gets as many, so that its shape is known beforehand.

One kernel on a GPU, where the same in torch takes some fifty launches; those are the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..row_layout import Limits, RowLayout, SlotTable, survey

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None

BLOCK = 1024  # channels of an embedding that are copied together


def spread(
    slot_table: SlotTable, width: int, given: Tensor, depth: Tensor, parent: Tensor | None, seen: Tensor, limits: Limits
) -> tuple[RowLayout, Tensor]:
    """The layout of `width` cells for each sequence, and what was given ([T] tokens or [T, d] embeddings), by cells.

    Rows come packed, as the slot_table says; padding repeats some row. `seen` learns what the new rows see, as in `survey`.
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
    return survey(even, depth[cell], links, width, seen, limits), given[cell]


def pad_rows_fused(
    slot_table: SlotTable, width: int, given: Tensor, depth: Tensor, parent: Tensor | None, seen: Tensor, limits: Limits
) -> tuple[RowLayout, Tensor]:
    """A program for each cell. Nobody reads a row of `seen` that another program writes: parents are older rows."""
    batch, reach = len(slot_table.slot), seen.shape[1]
    begin, end = slot_table.slot.new_empty((2, batch)).unbind(0)
    slot_of, position, place = slot_table.slot.new_empty((3, batch * width)).unbind(0)
    visible = seen.new_empty((batch, width, reach))
    laid = given.new_empty((batch * width, *given.shape[1:]))
    given = given.contiguous()
    channels = given.numel() // max(1, len(given))
    columns = [
        column.contiguous()
        for column in (slot_table.slot, slot_table.length, slot_table.first, slot_table.count, slot_table.begin)
    ]
    _spread[(batch * width,)](
        *columns, depth.contiguous(), depth if parent is None else parent.contiguous(), given, seen,
        begin, end, slot_of, position, place, visible, laid,
        len(depth), width, channels, len(seen), limits.capacity, limits.positions,
        REACH=reach, SEEN=triton.next_power_of_2(reach), CHAIN=parent is None,
        BLOCK=min(BLOCK, triton.next_power_of_2(channels)), num_warps=1 if channels == 1 else 4,
    )  # fmt: skip
    slot, length, _, count, _ = columns
    return RowLayout(slot, length, count, begin, end, slot_of, position, place, visible), laid


if triton is not None:

    @triton.jit
    def _packed(begin, count, n, rows):  # type: ignore[no-untyped-def]
        """The packed row that cell n of a sequence holds."""
        return tl.minimum(tl.maximum(begin + tl.minimum(n, count - 1), 0), rows - 1)

    @triton.jit(do_not_specialize=["rows", "width", "slots", "capacity", "positions"])  # type: ignore[untyped-decorator]
    def _spread(  # type: ignore[no-untyped-def]
        slot_, length_, first_, count_, begin_, depth, parent, given, seen,
        begins, ends, slot_of, position, place, visible, laid,
        rows, width, channels, slots, capacity, positions,
        REACH: tl.constexpr, SEEN: tl.constexpr, CHAIN: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        cell = tl.program_id(0)
        b, n = cell // width, cell % width
        slot, length, first = tl.load(slot_ + b), tl.load(length_ + b), tl.load(first_ + b)
        count, begin = tl.load(count_ + b), tl.load(begin_ + b)
        row = _packed(begin, count, n, rows)
        real, at = n < count, length + first + n
        tl.store(slot_of + cell, slot)
        tl.store(position + cell, tl.minimum(length + tl.load(depth + row), positions - 1))
        tl.store(place + cell, tl.where(real & (at < capacity), at, -1))
        if n == 0:
            tl.store(begins + b, b.to(tl.int64) * width)
            tl.store(ends + b, tl.minimum(length + first + count, capacity))
        column = tl.arange(0, SEEN)
        inside = column < REACH
        shelf = seen + tl.where(slot < 0, slots - 1, slot) * (REACH * REACH)
        if CHAIN:
            above = first - 1
            sees = (column >= first) & (column <= first + n)
        else:
            above = tl.load(parent + row)
            sees = column == first + n
            steps = 0
            while (above >= first) & (above < first + width) & (steps < width):  # what padding says may go in a circle
                sees = sees | (column == above)
                above = tl.load(parent + _packed(begin, count, above - first, rows))
                steps += 1
        older = inside & (above >= 0) & (above < first) & (above < REACH)
        line = tl.load(shelf + tl.minimum(tl.maximum(above, 0), REACH - 1) * REACH + column, mask=older, other=0)
        line = tl.where(sees, 1, line).to(tl.uint8)
        tl.store(visible + cell * REACH + column, line, mask=inside)
        number = tl.minimum(first + n, REACH - 1)
        tl.store(shelf + number * REACH + column, line, mask=inside & real)
        i = tl.arange(0, BLOCK)
        for start in range(0, channels, BLOCK):
            kept = start + i < channels
            here = tl.load(given + row * channels + start + i, mask=kept, other=0)
            tl.store(laid + cell * channels + start + i, here, mask=kept)
