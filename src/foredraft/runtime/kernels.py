"""Triton kernels of a pass over rows of trees, and what they compute in plain torch (the slow twins).

The store's layer is [slots, Hkv, capacity, D]. A row sees its sequence's committed text, and of the scratch rows
behind it those that the ground's `visible` names. Elsewhere than on CUDA the twins run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .ground import NOWHERE, Ground

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None

TILE = 64  # keys that a program looks at together
PROGRAMS = 264  # enough to fill a large GPU twice
MOST_SPLITS = 16  # programs among which the keys of one sequence are shared out


def can_attend(dim: int) -> bool:
    """Whether the kernels take heads of this many channels."""
    return triton is not None and dim >= 16 and dim & (dim - 1) == 0


# --- rotations and the store ----------------------------------------------------------------------------------------


def rotate_and_store(heads: Tensor, rotations: Tensor | None, ground: Ground, keys: Tensor, values: Tensor) -> Tensor:
    """heads [T, H + 2 Hkv, D] -> queries [T, H, D]; keys and values go to their places.

    rotations [positions, 2, D] as `models.rope` makes them; None = queries and keys are rotated already.
    """
    if not heads.is_cuda:
        return rotate_and_store_twin(heads, rotations, ground, keys, values)
    return rotate_and_store_fused(heads.contiguous(), rotations, ground, keys, values)


def rotate_and_store_fused(
    heads: Tensor, rotations: Tensor | None, ground: Ground, keys: Tensor, values: Tensor
) -> Tensor:
    rows, count, dim = heads.shape
    kv_heads = keys.shape[1]
    query = heads.new_empty((rows, count - 2 * kv_heads, dim))
    _rotate_and_store[(rows, count)](
        heads, heads if rotations is None else rotations, ground.position, ground.place, ground.slot_of,
        query, keys, values, count, kv_heads, keys.stride(0), keys.stride(1), D=dim, TURN=rotations is not None,
    )  # fmt: skip
    return query


def rotate_and_store_twin(
    heads: Tensor, rotations: Tensor | None, ground: Ground, keys: Tensor, values: Tensor
) -> Tensor:
    kv_heads = keys.shape[1]
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if rotations is not None:
        cos, sin = rotations[ground.position].chunk(2, dim=1)
        q, k = (torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin) for x in (q, k))
    # A row without a place repeats what some row with a place writes: shapes must not depend on values.
    index = torch.arange(len(heads), device=heads.device)
    there = ground.place != NOWHERE
    source = torch.where(there, index, there.to(torch.int8).argmax())
    slot, place = ground.slot_of[source], ground.place[source]
    keys[slot, :, place] = k[source]
    values[slot, :, place] = v[source]
    return q


# --- attention ------------------------------------------------------------------------------------------------------


def tree_attention(query: Tensor, ground: Ground, keys: Tensor, values: Tensor) -> Tensor:
    """query [T, H, D] -> [T, H * D]; padding gets zeros."""
    if not query.is_cuda:
        return tree_attention_twin(query, ground, keys, values)
    return tree_attention_fused(query, ground, keys, values)


def tree_attention_fused(query: Tensor, ground: Ground, keys: Tensor, values: Tensor) -> Tensor:
    """The keys of one sequence are shared out among several programs, whose parts are merged afterwards."""
    rows, heads, dim = query.shape
    (batch, width, reach), kv_heads = ground.visible.shape, keys.shape[1]
    group = heads // kv_heads
    block = max(16, min(64, triton.next_power_of_2(width * group)))
    blocks = triton.cdiv(width * group, block)
    splits = max(1, min(MOST_SPLITS, PROGRAMS // (batch * kv_heads * blocks)))
    out = torch.empty((rows, heads * dim), dtype=query.dtype, device=query.device)
    shape = (batch * kv_heads, splits, width * group)
    part = torch.empty((*shape, dim), dtype=torch.float32, device=query.device)
    peak, mass = (torch.empty(shape, dtype=torch.float32, device=query.device) for _ in range(2))
    _attend[(batch * kv_heads, blocks, splits)](
        query, keys, values, ground.slot, ground.length, ground.count, ground.begin, ground.end, ground.visible,
        part, peak, mass, dim**-0.5, width, kv_heads, reach, splits, keys.stride(0), keys.stride(1),
        G=group, D=dim, ROWS=block, KEYS=TILE, PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    _merge[(batch * width, heads)](
        part, peak, mass, ground.count, ground.begin, out, width, kv_heads, splits,
        G=group, D=dim, PADDED=rows == batch * width,
    )  # fmt: skip
    return out


def tree_attention_twin(query: Tensor, ground: Ground, keys: Tensor, values: Tensor) -> Tensor:
    (_, width, reach), capacity = ground.visible.shape, keys.shape[2]
    column = torch.arange(capacity, device=query.device)
    scratch = column - ground.length[:, None]  # [B, capacity]
    seen = ground.visible.gather(2, scratch.clamp(0, reach - 1)[:, None, :].expand(-1, width, -1)).bool()
    mask = (scratch < 0)[:, None, :] | (seen & ((scratch >= 0) & (column < ground.end[:, None]))[:, None, :])
    turn = torch.arange(width, device=query.device)
    real = turn < ground.count[:, None]  # [B, W]
    cell = torch.where(real, ground.begin[:, None] + turn, 0)
    asked = query[cell].transpose(1, 2)  # [B, H, W, D]
    group, slot = query.shape[1] // keys.shape[1], ground.slot.clamp(min=0)
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

    data [L, 2, slots, Hkv, capacity, D]; slot, length and count are [B], keep is [B, A].
    """
    if not data.is_cuda:
        return move_rows_twin(data, slot, length, count, keep)
    return move_rows_fused(data, slot, length, count, keep.contiguous())


def move_rows_fused(data: Tensor, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    layers, both, _, heads, _, dim = data.shape
    _move[(len(slot), layers * both, heads)](
        data, slot, length, count, keep, keep.shape[1], data.stride(1), data.stride(2), data.stride(3), D=dim
    )


def move_rows_twin(data: Tensor, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
    turn = torch.arange(keep.shape[1], device=data.device)
    source = length[:, None] + torch.where(turn < count[:, None], keep, turn)  # the others stay where they are
    data[:, :, slot[:, None], :, length[:, None] + turn] = data[:, :, slot[:, None], :, source]


if triton is not None:

    @triton.jit(do_not_specialize=["count", "kv_heads"])  # type: ignore[untyped-decorator]
    def _rotate_and_store(  # type: ignore[no-untyped-def]
        heads, rotations, position, place, slot_of, query, keys, values,
        count, kv_heads, slot_stride, head_stride, D: tl.constexpr, TURN: tl.constexpr,
    ):  # fmt: skip
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

    @triton.jit(do_not_specialize=["width", "kv_heads", "reach", "splits"])  # type: ignore[untyped-decorator]
    def _attend(  # type: ignore[no-untyped-def]
        query, keys, values, slots, lengths, counts, begins, ends, visible, part, peak, mass,
        scale, width, kv_heads, reach, splits, slot_stride, head_stride,
        G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        both, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        b, head = both // kv_heads, both % kv_heads
        length, end, count = tl.load(lengths + b), tl.load(ends + b), tl.load(counts + b)
        line = block * ROWS + tl.arange(0, ROWS)  # new row n and query head g of the group
        row, member = line // G, line % G
        real = row < count
        d = tl.arange(0, D)
        flat = (tl.load(begins + b) + row) * (kv_heads * G) + head * G + member
        q = tl.load(query + flat[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
        tiles = tl.cdiv(tl.cdiv(end, KEYS), splits)
        begin = split * tiles * KEYS
        stop = tl.minimum(end, begin + tiles * KEYS)
        stop = tl.where(count > 0, stop, begin)
        base = tl.load(slots + b) * slot_stride + head * head_stride
        top = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, D), tl.float32)
        for start in range(begin, stop, KEYS):
            at = start + tl.arange(0, KEYS)
            inside = at < stop
            k = tl.load(keys + base + at[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
            score = tl.dot(q, k, input_precision=PRECISION) * scale
            scratch = at - length
            asked = real[:, None] & (inside & (scratch >= 0))[None, :]
            seen = tl.load(visible + (b * width + row)[:, None] * reach + scratch[None, :], mask=asked, other=0)
            shown = (real[:, None] & (inside & (scratch < 0))[None, :]) | (seen != 0)
            score = tl.where(shown, score, -float("inf"))
            higher = tl.maximum(top, tl.max(score, axis=1))
            safe = tl.where(higher == -float("inf"), 0.0, higher)
            weight = tl.exp(score - safe[:, None])
            fade = tl.exp(top - safe)
            v = tl.load(values + base + at[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
            sums = sums * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
            total = total * fade + tl.sum(weight, axis=1)
            top = higher
        written = line < width * G
        slab = (both * splits + split) * width * G + line
        tl.store(part + slab[:, None] * D + d[None, :], sums, mask=written[:, None])
        tl.store(peak + slab, top, mask=written)
        tl.store(mass + slab, total, mask=written)

    @triton.jit(do_not_specialize=["width", "kv_heads", "splits"])  # type: ignore[untyped-decorator]
    def _merge(  # type: ignore[no-untyped-def]
        part, peak, mass, counts, begins, out, width, kv_heads, splits,
        G: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr,
    ):  # fmt: skip
        cell, head = tl.program_id(0), tl.program_id(1)
        b, new = cell // width, cell % width
        d = tl.arange(0, D)
        first = ((b * kv_heads + head // G) * splits * width + new) * G + head % G
        top = tl.full((), -float("inf"), tl.float32)
        for split in range(splits):
            top = tl.maximum(top, tl.load(peak + first + split * width * G))
        top = tl.where(top == -float("inf"), 0.0, top)
        total = tl.zeros((), tl.float32)
        sums = tl.zeros((D,), tl.float32)
        for split in range(splits):
            at = first + split * width * G
            fade = tl.exp(tl.load(peak + at) - top)
            total += tl.load(mass + at) * fade
            sums += tl.load(part + at * D + d) * fade
        merged = sums / tl.where(total > 0, total, 1.0)
        real = (new + d * 0 < tl.load(counts + b)) | PADDED  # padding's zeros, where padding has rows of its own
        row = tl.load(begins + b) + new
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
