"""Triton kernels of a pass over rows of trees, and what they compute in plain torch (the references).

A layer of the K/V cache is [slots, Hkv, capacity, D]. A row sees its sequence's committed text, and of the scratch rows
after it those that the layout's `visible` names. On other devices than CUDA the references run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.early_launch import early
from ..row_layout import NOWHERE, RowLayout

try:
    import triton

    from ...kernels.tree_rows import attend_rows, merge_splits, move_path, rotate_rows
except ImportError:  # a CPU build of torch comes without it
    triton = None

TILE = 64  # keys that a program looks at together
LINES = 64  # at most, of queries that a program holds: new rows times query heads of a key head
PROGRAMS = 132  # enough for every multiprocessor of a large GPU
MOST_SPLITS = 16  # programs among which the keys of one sequence are shared out; a power of two
WARPS, STAGES, MERGE_WARPS = 4, 2, 1
LOG2_E = 1.4426950408889634  # the kernels work with powers of two


def can_attend(dim: int) -> bool:
    """Whether the kernels take heads of this many channels."""
    return triton is not None and dim >= 16 and dim & (dim - 1) == 0


# --- rotations and the K/V cache ------------------------------------------------------------------------------------


def rotate_and_store(
    heads: Tensor, rotations: Tensor | None, layout: RowLayout, keys: Tensor, values: Tensor
) -> Tensor:
    """heads [T, H + 2 Hkv, D] -> queries [T, H, D]; keys and values go to their places.

    rotations [positions, 2, D] as `models.layers.rope` makes them; None = queries and keys are rotated already.
    """
    if not heads.is_cuda:
        return rotate_and_store_reference(heads, rotations, layout, keys, values)
    return rotate_and_store_fused(heads.contiguous(), rotations, layout, keys, values)


def rotate_and_store_fused(
    heads: Tensor, rotations: Tensor | None, layout: RowLayout, keys: Tensor, values: Tensor
) -> Tensor:
    rows, count, dim = heads.shape
    kv_heads = keys.shape[1]
    query = heads.new_empty((rows, count - 2 * kv_heads, dim))
    rotate_rows[(rows, count)](
        heads, heads if rotations is None else rotations, layout.position, layout.place, layout.slot_of,
        query, keys, values, count, kv_heads, keys.stride(0), keys.stride(1), D=dim, TURN=rotations is not None,
        num_warps=max(1, dim // 128), **early(heads),
    )  # fmt: skip
    return query


def rotate_and_store_reference(
    heads: Tensor, rotations: Tensor | None, layout: RowLayout, keys: Tensor, values: Tensor
) -> Tensor:
    kv_heads = keys.shape[1]
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if rotations is not None:
        cos, sin = rotations[layout.position].chunk(2, dim=1)
        q, k = (torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin) for x in (q, k))
    # A row without a place repeats what some row with a place writes: shapes must not depend on values.
    index = torch.arange(len(heads), device=heads.device)
    there = layout.place != NOWHERE
    source = torch.where(there, index, there.to(torch.int8).argmax())
    slot, place = layout.slot_of[source], layout.place[source]
    keys[slot, :, place] = k[source]
    values[slot, :, place] = v[source]
    return q


# --- attention ------------------------------------------------------------------------------------------------------


def tree_attention(query: Tensor, layout: RowLayout, keys: Tensor, values: Tensor) -> Tensor:
    """query [T, H, D] -> [T, H * D]; padding gets zeros."""
    if not query.is_cuda:
        return tree_attention_reference(query, layout, keys, values)
    return tree_attention_fused(query, layout, keys, values)


def tree_attention_fused(query: Tensor, layout: RowLayout, keys: Tensor, values: Tensor) -> Tensor:
    """The keys of few sequences are shared out among several programs each, whose parts are merged afterwards."""
    rows, heads, dim = query.shape
    (batch, width, reach), kv_heads = layout.visible.shape, keys.shape[1]
    group = heads // kv_heads
    block = max(16, min(LINES, triton.next_power_of_2(width * group)))
    blocks = triton.cdiv(width * group, block)
    splits = max(1, min(MOST_SPLITS, PROGRAMS // (batch * kv_heads * blocks)))
    out = torch.empty((rows, heads * dim), dtype=query.dtype, device=query.device)
    part = peak = mass = out
    if splits > 1:
        shape = (batch * kv_heads, splits, width * group)
        part = torch.empty((*shape, dim), dtype=torch.float32, device=query.device)
        peak, mass = (torch.empty(shape, dtype=torch.float32, device=query.device) for _ in range(2))
    padded = rows == batch * width
    attend_rows[(batch * kv_heads, blocks, splits)](
        query, keys, values, layout.slot, layout.length, layout.count, layout.begin, layout.end, layout.visible,
        part, peak, mass, out, dim**-0.5 * LOG2_E, width, kv_heads, reach, splits, keys.stride(0), keys.stride(1),
        G=group, D=dim, ROWS=block, KEYS=TILE, PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        SHARED=splits > 1, PADDED=padded, num_warps=WARPS, num_stages=STAGES, **early(query),
    )  # fmt: skip
    if splits > 1:  # a kernel of its own spreads this over all multiprocessors; the last program to arrive was slower
        merge_splits[(batch * width, heads)](
            part, peak, mass, layout.count, layout.begin, out, width, kv_heads, splits,
            G=group, D=dim, SPLITS=triton.next_power_of_2(splits), PADDED=padded, num_warps=MERGE_WARPS, **early(query),
        )  # fmt: skip
    return out


def tree_attention_reference(query: Tensor, layout: RowLayout, keys: Tensor, values: Tensor) -> Tensor:
    (_, width, reach), capacity = layout.visible.shape, keys.shape[2]
    column = torch.arange(capacity, device=query.device)
    scratch = column - layout.length[:, None]  # [B, capacity]
    seen = layout.visible.gather(2, scratch.clamp(0, reach - 1)[:, None, :].expand(-1, width, -1)).bool()
    mask = (scratch < 0)[:, None, :] | (seen & ((scratch >= 0) & (column < layout.end[:, None]))[:, None, :])
    turn = torch.arange(width, device=query.device)
    real = turn < layout.count[:, None]  # [B, W]
    cell = torch.where(real, layout.begin[:, None] + turn, 0)
    asked = query[cell].transpose(1, 2)  # [B, H, W, D]
    group, slot = query.shape[1] // keys.shape[1], layout.slot.clamp(min=0)
    k, v = (x[slot].repeat_interleave(group, dim=1) for x in (keys, values))
    score = (asked @ k.transpose(2, 3)).float() * query.shape[2] ** -0.5
    weight = torch.softmax(score.masked_fill(~mask[:, None], -torch.inf), dim=-1).nan_to_num(0.0)  # may see nothing
    found = (weight.to(v.dtype) @ v).transpose(1, 2).flatten(2)  # [B, W, H * D]
    rows = len(query)
    out = found.new_zeros((rows + 1, found.shape[2]))  # the last row takes what padding writes
    out[torch.where(real, cell, rows)] = found
    return out[:rows]


# --- accepted paths -------------------------------------------------------------------------------------------------


def move_rows(data: Tensor, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    """Move scratch rows keep[b, :count[b]], which increase, to the front of the scratch rows of slot[b], in place.

    data [L, 2, slots, Hkv, capacity, D]; slot, length and count are [B], keep is [B, A]. Slot -1 is padding, never the
    first of a batch.
    """
    if not data.is_cuda:
        return move_rows_reference(data, slot, length, count, keep)
    return move_rows_fused(data, slot, length, count, keep.contiguous())


def move_rows_fused(data: Tensor, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    layers, both, _, heads, _, dim = data.shape
    move_path[(len(slot), layers * both, heads)](
        data, slot, length, count, keep, keep.shape[1], data.stride(1), data.stride(2), data.stride(3), D=dim
    )


def move_rows_reference(data: Tensor, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    who = torch.where(slot >= 0, torch.arange(len(slot), device=slot.device), 0)  # padding repeats the first sequence
    slot, length, count, keep = (x[who] for x in (slot, length, count, keep))
    turn = torch.arange(keep.shape[1], device=data.device)
    source = length[:, None] + torch.where(turn < count[:, None], keep, turn)  # the others stay where they are
    data[:, :, slot[:, None], :, length[:, None] + turn] = data[:, :, slot[:, None], :, source]
