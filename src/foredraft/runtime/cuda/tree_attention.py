"""Triton kernels of a pass over rows of trees, and what they compute in plain torch (the references).

A layer of the K/V cache is pages of keys and of values, [pages, Hkv, rows, D] each; the layout's `pages` say which of
them hold a slot's text. A row sees its sequence's committed text, and of the scratch rows after it those that the
layout's `visible` names. On other devices than CUDA the references run.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.early_launch import early
from ..row_layout import NOWHERE, Pages, RowLayout
from .kv_layer import KVLayer

try:
    import triton

    from ...kernels.tree_rows import attend_chunks, merge_chunks, move_path, rotate_rows
except ImportError:  # a CPU build of torch comes without it
    triton = None

UNIT = 128  # keys; a chunk of a text is a multiple of as many
PAGE = 128  # rows of the K/V cache; tiles of keys divide it
ITEMS = 128  # chunks of one long text, of all key heads together: one for each multiprocessor of a large GPU
LEAST_CHUNKS, MOST_CHUNKS = 16, 64  # of a key head
PART_BYTES = 1 << 28  # of unmerged sums; passes of very many rows get fewer chunks
SPAN, MERGE_WARPS = 16, 1  # chunks that are merged together
enabled = True  # False: the references on every device
LOG2_E = 1.4426950408889634  # the kernels work with powers of two


class Tiles(NamedTuple):
    """How attention is cut up. A line is a new row and one of the query heads that share a key head."""

    lines: int  # at most, that a program holds: a power of two
    rest: int  # lines more in a second tile, where these do not suffice: 33 rows of 4 heads are 128 + 4 lines
    keys: int  # that are read together; divides UNIT and PAGE
    warps: int
    stages: int  # tiles that are read ahead, and one
    programs: int  # of a multiprocessor


# With 64 lines or more products pass through wgmma where there is one, else mma. The quickest of docs/results/gpu-long.
FEW_LINES = Tiles(32, 0, 64, 4, 3, 2)
MORE_LINES = Tiles(64, 0, 64, 4, 3, 2)
MANY_LINES = Tiles(128, 16, 64, 8, 3, 1)
SMALL_MEMORY = Tiles(64, 0, 32, 4, 2, 2)  # below 160 KiB of shared memory, and for float32
ROOM = 160 << 10


def tiles_for(lines: int, dtype: torch.dtype, device: torch.device, wanted: Tiles | None = None) -> Tiles:
    """By the lines of a key head, or those that are wanted, where there is memory for them."""
    room, _ = _device(device)
    if dtype == torch.float32 or room < ROOM:
        return SMALL_MEMORY._replace(lines=32) if dtype == torch.float32 else SMALL_MEMORY
    if wanted is not None:
        return wanted
    return FEW_LINES if lines <= FEW_LINES.lines else MORE_LINES if lines <= MORE_LINES.lines else MANY_LINES


@cache
def _device(device: torch.device) -> tuple[int, int]:
    """Shared memory of a program, and multiprocessors; of the interpreter something small."""
    if device.type != "cuda":
        return 1 << 20, 3
    known = torch.cuda.get_device_properties(device)
    return getattr(known, "shared_memory_per_block_optin", ROOM), known.multi_processor_count


def can_attend(dim: int) -> bool:
    """Whether the kernels take heads of this many channels."""
    return triton is not None and dim >= 16 and dim & (dim - 1) == 0


# --- rotations and the K/V cache ------------------------------------------------------------------------------------


def rotate_and_store(
    heads: Tensor,
    rotations: Tensor | None,
    layout: RowLayout,
    kv: KVLayer,
    bias: Tensor | None = None,
) -> Tensor:
    """heads [T, H + 2 Hkv, D] (+ bias) -> queries [T, H, D]; keys and values go to their places.

    rotations [positions, 2, D] as `models.layers.rope` makes them; None = queries and keys are rotated already.
    """
    if not heads.is_cuda or not enabled:
        return rotate_and_store_reference(heads, rotations, layout, kv, bias)
    return rotate_and_store_fused(heads.contiguous(), rotations, layout, kv, bias)


def rotate_and_store_fused(
    heads: Tensor,
    rotations: Tensor | None,
    layout: RowLayout,
    kv: KVLayer,
    bias: Tensor | None = None,
) -> Tensor:
    rows, count, dim = heads.shape
    kv_heads = kv.keys.shape[1]
    query = heads.new_empty((rows, count - 2 * kv_heads, dim))
    rotate_rows[(rows, count)](
        heads, heads if bias is None else bias, heads if rotations is None else rotations,
        layout.position, layout.place, query, *kv.arguments,
        count, kv_heads, kv.keys.stride(0), kv.keys.stride(1), PAGE=layout.pages.size, D=dim,
        BIAS=bias is not None, TURN=rotations is not None, SCALED=kv.key_scales is not None,
        num_warps=max(1, dim // 128), **early(heads),
    )  # fmt: skip
    return query


def rotate_and_store_reference(
    heads: Tensor,
    rotations: Tensor | None,
    layout: RowLayout,
    kv: KVLayer,
    bias: Tensor | None = None,
) -> Tensor:
    kv_heads = kv.keys.shape[1]
    heads = heads if bias is None else heads + bias.view(heads.shape[1:])
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if rotations is not None:
        cos, sin = rotations[layout.position].chunk(2, dim=1)
        q, k = (torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin) for x in (q, k))
    # A row without a place repeats what some row with a place writes: shapes must not depend on values.
    index = torch.arange(len(heads), device=heads.device)
    there = layout.place != NOWHERE
    source = torch.where(there, index, there.to(torch.int8).argmax())
    page, row = layout.place[source] // layout.pages.size, layout.place[source] % layout.pages.size
    kv.store(page, row, k[source], v[source])
    return q


# --- attention ------------------------------------------------------------------------------------------------------


def tree_attention(query: Tensor, layout: RowLayout, kv: KVLayer) -> Tensor:
    """query [T, H, D] -> [T, H * D]; padding gets zeros."""
    if not query.is_cuda or not enabled:
        return tree_attention_reference(query, layout, kv)
    return tree_attention_fused(query, layout, kv)


def tree_attention_fused(query: Tensor, layout: RowLayout, kv: KVLayer, tiles: Tiles | None = None) -> Tensor:
    """Every text is cut into chunks by its own length; programs take them in turn, and their parts are merged."""
    rows, heads, dim = query.shape
    (batch, width, reach), kv_heads = layout.visible.shape, kv.keys.shape[1]
    group = heads // kv_heads
    tiles = tiles or tiles_for(width * group, query.dtype, query.device)
    blocks, per, block, rest = cut_lines(width * group, tiles)
    most = most_chunks(kv_heads, layout.pages.capacity, batch * width * heads * dim * 4)
    shape = (batch * kv_heads, most, width * group)
    part = torch.empty((*shape, dim), dtype=torch.float32, device=query.device)
    peak, mass = (torch.empty(shape, dtype=torch.float32, device=query.device) for _ in range(2))
    out = torch.empty((rows, heads * dim), dtype=query.dtype, device=query.device)
    programs = min(batch * kv_heads * blocks * most, tiles.programs * _device(query.device)[1])
    attend_chunks[(programs,)](
        query, *kv.arguments, layout.pages.table, layout.slot, layout.length, layout.count, layout.begin, layout.end,
        layout.visible, part, peak, mass, dim**-0.5 * LOG2_E, batch, width, blocks, per, reach, most,
        layout.pages.table.shape[1], kv.keys.stride(0), kv.keys.stride(1), BATCH=places_for(batch), HEADS=kv_heads,
        G=group, D=dim, ROWS=block, REST=rest, KEYS=tiles.keys, PAGE=layout.pages.size, UNIT=UNIT,
        SCALED=kv.key_scales is not None, FAR=kv.far, PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiles.warps, num_stages=tiles.stages, **early(query),
    )  # fmt: skip
    # A kernel of its own spreads this over all multiprocessors; the last program to arrive was slower.
    merge_chunks[(batch * width, heads)](
        part, peak, mass, layout.length, layout.count, layout.begin, layout.end, out, width, kv_heads, reach, most,
        G=group, D=dim, UNIT=UNIT, SPAN=SPAN, PADDED=rows == batch * width, num_warps=MERGE_WARPS,
        **early(query),
    )  # fmt: skip
    return out


def places_for(batch: int) -> int:
    """Sequences that a program looks through. In few sizes: each is a kernel to be compiled."""
    return 1 if batch == 1 else max(64, triton.next_power_of_2(batch))


def cut_lines(lines: int, tiles: Tiles) -> tuple[int, int, int, int]:
    """Blocks, lines of each, and the sizes of the two tiles that hold them (0 = no second one).

    Several blocks take the largest tiles, whatever is left of them: each other size is a kernel to be compiled.
    """
    blocks = -(-lines // (tiles.lines + tiles.rest))
    per = -(-lines // blocks)
    if blocks > 1:
        return blocks, per, tiles.lines, tiles.rest
    return 1, per, max(16, min(tiles.lines, 1 << (per - 1).bit_length())), tiles.rest if per > tiles.lines else 0


def most_chunks(kv_heads: int, capacity: int, bytes_each: int) -> int:
    """Into how many chunks a text is cut at most; bytes_each: of their parts, if every text had one chunk."""
    most = max(LEAST_CHUNKS, min(MOST_CHUNKS, ITEMS // kv_heads))
    while most > 1 and most * bytes_each > PART_BYTES:
        most //= 2
    return max(1, min(most, -(-capacity // UNIT)))


def tree_attention_reference(query: Tensor, layout: RowLayout, kv: KVLayer) -> Tensor:
    _, width, reach = layout.visible.shape
    column = torch.arange(layout.pages.capacity, device=query.device)
    scratch = column - layout.length[:, None]  # [B, capacity]
    seen = layout.visible.gather(2, scratch.clamp(0, reach - 1)[:, None, :].expand(-1, width, -1)).bool()
    mask = (scratch < 0)[:, None, :] | (seen & ((scratch >= 0) & (column < layout.end[:, None]))[:, None, :])
    turn = torch.arange(width, device=query.device)
    real = turn < layout.count[:, None]  # [B, W]
    cell = torch.where(real, layout.begin[:, None] + turn, 0)
    asked = query[cell].transpose(1, 2)  # [B, H, W, D]
    group, rows_of = query.shape[1] // kv.keys.shape[1], kv.texts(layout.pages.table[layout.slot], query.dtype)
    k, v = (x.repeat_interleave(group, dim=1) for x in rows_of)
    v = v.masked_fill((column >= layout.end[:, None])[:, None, :, None], 0)  # pages may hold others' NaN there
    score = (asked @ k.transpose(2, 3)).float() * query.shape[2] ** -0.5
    weight = torch.softmax(score.masked_fill(~mask[:, None], -torch.inf), dim=-1).nan_to_num(0.0)  # may see nothing
    found = (weight.to(v.dtype) @ v).transpose(1, 2).flatten(2)  # [B, W, H * D]
    rows = len(query)
    out = found.new_zeros((rows + 1, found.shape[2]))  # the last row takes what padding writes
    out[torch.where(real, cell, rows)] = found
    return out[:rows]


# --- accepted paths -------------------------------------------------------------------------------------------------


def move_rows(data: Tensor, pages: Pages, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    """Move scratch rows keep[b, :count[b]], which increase, to the front of the scratch rows of slot[b], in place.

    data [L, 2, pages, Hkv, rows, D]; slot, length and count are [B], keep is [B, A]. Slot -1 is padding, never the
    first of a batch.
    """
    if not data.is_cuda or not enabled:
        return move_rows_reference(data, pages, slot, length, count, keep)
    return move_rows_fused(data, pages, slot, length, count, keep.contiguous())


def move_rows_fused(data: Tensor, pages: Pages, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    layers, both, _, heads, _, dim = data.shape
    move_path[(len(slot), layers * both, heads)](
        data, pages.table, slot, length, count, keep, keep.shape[1], pages.table.shape[1],
        data.stride(1), data.stride(2), data.stride(3), PAGE=pages.size, D=dim,
    )  # fmt: skip


def move_rows_reference(data: Tensor, pages: Pages, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    who = torch.where(slot >= 0, torch.arange(len(slot), device=slot.device), 0)  # padding repeats the first sequence
    slot, length, count, keep = (x[who] for x in (slot, length, count, keep))
    turn = torch.arange(keep.shape[1], device=data.device)
    source = length[:, None] + torch.where(turn < count[:, None], keep, turn)  # the others stay where they are
    old, new = (pages.places(slot[:, None], row) for row in (source, length[:, None] + turn))
    size = pages.size
    data[:, :, new // size, :, new % size] = data[:, :, old // size, :, old % size]
