"""The kernels of `runtime.cuda.tree_attention`: rotations and K/V writes, attention over trees, and accepted paths."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    from .early_launch import wait_for_others
except ImportError:  # a CPU build of torch comes without it
    triton = None


if triton is not None:

    @triton.jit(do_not_specialize=["count", "kv_heads"])  # type: ignore[untyped-decorator]
    def rotate_rows(  # type: ignore[no-untyped-def]
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
    def attend_rows(  # type: ignore[no-untyped-def]
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
    def merge_splits(  # type: ignore[no-untyped-def]
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
    def move_path(  # type: ignore[no-untyped-def]
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
