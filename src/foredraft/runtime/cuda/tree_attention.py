"""Triton kernels of a pass over rows of trees, and what they compute in plain torch (the references).

The store's layer is [slots, Hkv, capacity, D]. A row sees its sequence's committed text, and of the scratch rows
behind it those that the layout's `visible` names. Elsewhere than on CUDA the twins run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.early_launch import early
from ..row_layout import NOWHERE, RowLayout

try:
    import triton
    import triton.language as tl

    from ...kernels.early_launch import wait_for_others
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


# --- rotations and the store ----------------------------------------------------------------------------------------


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
    _rotate_and_store[(rows, count)](
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
    _attend[(batch * kv_heads, blocks, splits)](
        query, keys, values, layout.slot, layout.length, layout.count, layout.begin, layout.end, layout.visible,
        part, peak, mass, out, dim**-0.5 * LOG2_E, width, kv_heads, reach, splits, keys.stride(0), keys.stride(1),
        G=group, D=dim, ROWS=block, KEYS=TILE, PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        SHARED=splits > 1, PADDED=padded, num_warps=WARPS, num_stages=STAGES, **early(query),
    )  # fmt: skip
    if splits > 1:  # a kernel of its own spreads this over all multiprocessors; the last program to arrive was slower
        _merge[(batch * width, heads)](
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
    _move[(len(slot), layers * both, heads)](
        data, slot, length, count, keep, keep.shape[1], data.stride(1), data.stride(2), data.stride(3), D=dim
    )


def move_rows_reference(data: Tensor, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    who = torch.where(slot >= 0, torch.arange(len(slot), device=slot.device), 0)  # padding repeats the first sequence
    slot, length, count, keep = (x[who] for x in (slot, length, count, keep))
    turn = torch.arange(keep.shape[1], device=data.device)
    source = length[:, None] + torch.where(turn < count[:, None], keep, turn)  # the others stay where they are
    data[:, :, slot[:, None], :, length[:, None] + turn] = data[:, :, slot[:, None], :, source]


if triton is not None:

    @triton.jit(do_not_specialize=["count", "kv_heads"])  # type: ignore[untyped-decorator]
    def _rotate_and_store(  # type: ignore[no-untyped-def]
        heads, rotations, position, place, slot_of, query, keys, values,
        count, kv_heads, slot_stride, head_stride, D: tl.constexpr, TURN: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        if EARLY:
            wait_for_others()
        row, head = tl.program_id(0), tl.program_id(1)
        queries = count - 2 * kv_heads
        i = tl.arange(0, D)
        source = heads + (row * count + head) * D
        x = tl.load(source + i)
        at = tl.load(place + row)
        slot = tl.load(slot_of + row)
        stored = at + i * 0 >= 0
        if head < queries + kv_heads:
            turned = x
            if TURN:
                turn = rotations + tl.load(position + row) * (2 * D)
                other = tl.load(source + (i + D // 2) % D).to(tl.float32)
                cos, sin = tl.load(turn + i).to(tl.float32), tl.load(turn + D + i).to(tl.float32)
                turned = (x.to(tl.float32) * cos + other * sin).to(x.dtype)
            if head < queries:
                tl.store(query + (row * queries + head) * D + i, turned)
            else:
                goal = keys + slot * slot_stride + (head - queries) * head_stride + at * D
                tl.store(goal + i, turned, mask=stored)
        else:
            goal = values + slot * slot_stride + (head - queries - kv_heads) * head_stride + at * D
            tl.store(goal + i, x, mask=stored)

    @triton.jit  # type: ignore[untyped-decorator]
    def _weigh(score, v, top, total, sums, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
        """One more tile of scores (powers of two) and values: a softmax that is worked out as it goes."""
        higher = tl.maximum(top, tl.max(score, axis=1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp2(score - safe[:, None])
        fade = tl.exp2(top - safe)
        sums = tl.dot(weight.to(v.dtype), v, sums * fade[:, None], input_precision=PRECISION)
        return higher, total * fade + tl.sum(weight, axis=1), sums

    @triton.jit(do_not_specialize=["scale", "width", "kv_heads", "reach", "splits"])  # type: ignore[untyped-decorator]
    def _attend(  # type: ignore[no-untyped-def]
        query, keys, values, slots, lengths, counts, begins, ends, visible, part, peak, mass, out,
        scale, width, kv_heads, reach, splits, slot_stride, head_stride,
        G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
        SHARED: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        if EARLY:
            wait_for_others()
        both, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        b, head = both // kv_heads, both % kv_heads
        length, end = tl.load(lengths + b).to(tl.int32), tl.load(ends + b).to(tl.int32)
        count = tl.load(counts + b).to(tl.int32)
        base = tl.load(slots + b) * slot_stride + head * head_stride
        line = block * ROWS + tl.arange(0, ROWS)  # new row n and query head g of the group
        row, member = line // G, line % G
        real = row < count
        d, j = tl.arange(0, D), tl.arange(0, KEYS)
        flat = (tl.load(begins + b).to(tl.int32) + row) * (kv_heads * G) + head * G + member
        q = tl.load(query + flat[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
        tiles = tl.cdiv(tl.cdiv(end, KEYS), splits)
        begin = split * tiles * KEYS
        stop = tl.minimum(end, begin + tiles * KEYS)
        stop = tl.where(count > 0, stop, begin)
        text = tl.minimum(stop, tl.maximum(begin, length // KEYS * KEYS))  # tiles up to here are seen by every row
        there, here = keys + base + j[None, :] * D + d[:, None], values + base + j[:, None] * D + d[None, :]
        top = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, D), tl.float32)
        for start in range(begin, text, KEYS):
            k, v = tl.load(there + start * D), tl.load(here + start * D)
            score = tl.dot(q, k, input_precision=PRECISION) * scale
            top, total, sums = _weigh(score, v, top, total, sums, PRECISION)
        for start in range(text, stop, KEYS):
            at = start + j
            inside = at < stop
            k = tl.load(there + start * D, mask=inside[None, :], other=0.0)
            v = tl.load(here + start * D, mask=inside[:, None], other=0.0)
            scratch = at - length
            asked = real[:, None] & (inside & (scratch >= 0))[None, :]
            seen = tl.load(visible + (b * width + row)[:, None] * reach + scratch[None, :], mask=asked, other=0)
            score = tl.dot(q, k, input_precision=PRECISION) * scale
            score = tl.where((inside & (scratch < 0))[None, :] | (seen != 0), score, -float("inf"))
            top, total, sums = _weigh(score, v, top, total, sums, PRECISION)
        written = line < width * G
        if SHARED:
            slab = (both * splits + split) * width * G + line
            tl.store(part + slab[:, None] * D + d[None, :], tl.where(real[:, None], sums, 0.0), mask=written[:, None])
            tl.store(peak + slab, tl.where(real, top, -float("inf")), mask=written)
            tl.store(mass + slab, tl.where(real, total, 0.0), mask=written)
        else:
            found = tl.where(real[:, None], sums / tl.where(total > 0, total, 1.0)[:, None], 0.0)
            shown = written & (real | PADDED)  # padding's zeros, where padding has rows of its own
            tl.store(out + flat[:, None] * D + d[None, :], found.to(out.dtype.element_ty), mask=shown[:, None])

    @triton.jit(do_not_specialize=["width", "kv_heads", "splits"])  # type: ignore[untyped-decorator]
    def _merge(  # type: ignore[no-untyped-def]
        part, peak, mass, counts, begins, out, width, kv_heads, splits,
        G: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        if EARLY:
            wait_for_others()
        cell, head = tl.program_id(0), tl.program_id(1)
        b, new = cell // width, cell % width
        d, split = tl.arange(0, D), tl.arange(0, SPLITS)
        inside = split < splits
        at = ((b * kv_heads + head // G) * splits + split) * width * G + new * G + head % G
        parts = tl.load(part + at[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        peaks = tl.load(peak + at, mask=inside, other=-float("inf"))
        masses = tl.load(mass + at, mask=inside, other=0.0)
        real = (new + d * 0 < tl.load(counts + b)) | PADDED  # padding's zeros, where padding has rows of its own
        row = tl.load(begins + b) + new
        top = tl.max(peaks, axis=0)
        fade = tl.exp2(peaks - tl.where(top == -float("inf"), 0.0, top))
        total = tl.sum(masses * fade, axis=0)
        merged = tl.sum(parts * fade[:, None], axis=0) / tl.where(total > 0, total, 1.0)
        tl.store(out + (row * kv_heads * G + head) * D + d, merged.to(out.dtype.element_ty), mask=real)

    @triton.jit(do_not_specialize=["reach"])  # type: ignore[untyped-decorator]
    def _move(  # type: ignore[no-untyped-def]
        data, slots, lengths, counts, keep, reach, plane_stride, slot_stride, head_stride, D: tl.constexpr
    ):
        b, plane, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        slot, count = tl.load(slots + b), tl.load(counts + b)
        d = tl.arange(0, D)
        base = data + plane.to(tl.int64) * plane_stride + slot * slot_stride + head * head_stride
        base += tl.load(lengths + b) * D
        for i in range(count):  # a row moves down or stays, so nothing is overwritten before it is read
            source = tl.load(keep + b * reach + i)
            if source != i:
                tl.store(base + i * D + d, tl.load(base + source * D + d))
