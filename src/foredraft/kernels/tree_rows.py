"""The kernels of `runtime.cuda.tree_attention`: rotations and K/V writes, attention over trees, and accepted paths."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    from .early_launch import wait_for_others
except ImportError:  # a CPU build of torch comes without it
    triton = None


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _keep(rows, scales, x, goal, stored, D: tl.constexpr, SCALED: tl.constexpr):  # type: ignore[no-untyped-def]
        """Keys or values of one row and head into their place. Scaled by a power of two, so that the largest is from
        128 up to 256 and nothing but the last step rounds; see `runtime.cuda.kv_layer`."""
        i = tl.arange(0, D)
        if SCALED:
            x = x.to(tl.float32)
            bits = tl.max(tl.abs(x), axis=0).to(tl.int32, bitcast=True)
            power = tl.maximum(bits >> 23, 8) - 7
            tl.store(scales + goal // D, (power << 23).to(tl.float32, bitcast=True), mask=stored)
            x = x * ((254 - power) << 23).to(tl.float32, bitcast=True)
            x = x.to(rows.dtype.element_ty, fp_downcast_rounding="rtne")
        tl.store(rows + goal + i, x, mask=stored & (i >= 0))

    @triton.jit(do_not_specialize=["count", "kv_heads"])  # type: ignore[untyped-decorator]
    def rotate_rows(  # type: ignore[no-untyped-def]
        heads, bias, rotations, position, place, query, keys, values, key_scales, value_scales,
        count, kv_heads, page_stride, head_stride,
        PAGE: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr, TURN: tl.constexpr, SCALED: tl.constexpr,
        EARLY: tl.constexpr,
    ):  # fmt: skip
        if EARLY:
            wait_for_others()
        row, head = tl.program_id(0), tl.program_id(1)
        queries = count - 2 * kv_heads
        i = tl.arange(0, D)
        source = heads + (row * count + head) * D
        x = tl.load(source + i)
        if BIAS:
            x += tl.load(bias + head * D + i)
        at = tl.load(place + row)
        goal = at // PAGE * page_stride + at % PAGE * D
        if head < queries + kv_heads:
            turned = x
            if TURN:
                turn = rotations + tl.load(position + row) * (2 * D)
                other = tl.load(source + (i + D // 2) % D)
                if BIAS:
                    other += tl.load(bias + head * D + (i + D // 2) % D)
                other = other.to(tl.float32)
                cos, sin = tl.load(turn + i).to(tl.float32), tl.load(turn + D + i).to(tl.float32)
                turned = (x.to(tl.float32) * cos + other * sin).to(x.dtype)
            if head < queries:
                tl.store(query + (row * queries + head) * D + i, turned)
            else:
                _keep(keys, key_scales, turned, goal + (head - queries) * head_stride, at >= 0, D, SCALED)
        else:
            _keep(values, value_scales, x, goal + (head - queries - kv_heads) * head_stride, at >= 0, D, SCALED)

    @triton.jit  # type: ignore[untyped-decorator]
    def _within(page, row, page_stride, PAGE: tl.constexpr, D: tl.constexpr, FAR: tl.constexpr):  # type: ignore[no-untyped-def]
        """Where a row of a slot lies, given its page. FAR: the pages of a layer hold 2^31 numbers or more."""
        if FAR:
            page = page.to(tl.int64)
        return page * page_stride + row % PAGE * D

    @triton.jit  # type: ignore[untyped-decorator]
    def _ask(line, row, PAGE: tl.constexpr):  # type: ignore[no-untyped-def]
        """The page of a row; line: the slot's pages. A tile of keys lies in one page, and loops over tiles ask for the
        page of the next one, which is inside of the table even after the last: its last line is padding's. They carry
        the page as it was loaded. An address made of it would be computed, and waited for, just before it is used."""
        return tl.load(line + row // PAGE)

    @triton.jit  # type: ignore[untyped-decorator]
    def _scales(key_scales, value_scales, tile, j, D: tl.constexpr, SCALED: tl.constexpr):  # type: ignore[no-untyped-def]
        """What keys and values of a tile are to be multiplied by, which nobody asks for unless they are SCALED."""
        if SCALED:
            return tl.load(key_scales + tile // D + j), tl.load(value_scales + tile // D + j)
        else:
            return j, j

    @triton.jit  # type: ignore[untyped-decorator]
    def _scored(q, k, ks, scale, SCALED: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
        score = tl.dot(q, k, input_precision=PRECISION) * scale
        if SCALED:
            score *= ks[None, :]
        return score

    @triton.jit  # type: ignore[untyped-decorator]
    def _weigh(score, v, vs, top, total, sums, SCALED: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
        """One more tile of scores (powers of two) and values: a softmax that is worked out as it goes."""
        higher = tl.maximum(top, tl.max(score, axis=1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp2(score - safe[:, None])
        fade = tl.exp2(top - safe)
        share = weight
        if SCALED:
            share = weight * vs[None, :]
        sums = tl.dot(share.to(v.dtype), v, sums * fade[:, None], input_precision=PRECISION)
        return higher, total * fade + tl.sum(weight, axis=1), sums

    @triton.jit  # type: ignore[untyped-decorator]
    def _seen_by_all(q, k, v, ks, vs, scale, top, total, sums, SCALED: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
        """One more tile of keys that every line sees."""
        score = _scored(q, k, ks, scale, SCALED, PRECISION)
        return _weigh(score, v, vs, top, total, sums, SCALED, PRECISION)

    @triton.jit  # type: ignore[untyped-decorator]
    def _leave(part, peak, mass, slab, line, real, top, total, sums, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """A chunk's part of a softmax, for whoever merges."""
        d = tl.arange(0, D)
        tl.store(part + (slab + line)[:, None] * D + d[None, :], sums, mask=real[:, None])
        tl.store(peak + slab + line, top, mask=real)
        tl.store(mass + slab + line, total, mask=real)

    @triton.jit  # type: ignore[untyped-decorator]
    def _lines(first, last, count, begin, head, kv_heads, G: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        """ROWS lines from `first` on, a line for each new row and query head of the group: its number, its row, whether
        it is real, and its number among all query heads of the pass."""
        line = first + tl.arange(0, ROWS)
        row = line // G
        return line, row, (line < last) & (row < count), (begin + row) * (kv_heads * G) + head * G + line % G

    @triton.jit  # type: ignore[untyped-decorator]
    def _asked(query, flat, real, ROWS: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """Queries of lines, and their softmax before they have seen a key."""
        q = tl.load(query + flat[:, None] * D + tl.arange(0, D)[None, :], mask=real[:, None], other=0.0)
        top = tl.full((ROWS,), -float("inf"), tl.float32)
        return q, top, tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, D), tl.float32)

    @triton.jit
    def _edge(there, here, tile, inside, q):  # type: ignore[no-untyped-def]
        """Keys and values of a tile of which some are not there."""
        k = tl.load(there + tile, mask=inside[None, :], other=0.0)
        return k.to(q.dtype), tl.load(here + tile, mask=inside[:, None], other=0.0).to(q.dtype)

    @triton.jit  # type: ignore[untyped-decorator]
    def _seen_by_some(  # type: ignore[no-untyped-def]
        q, k, v, ks, vs, scale, visible, row, real, at, length, stop, reach, top, total, sums,
        SCALED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """One more tile of keys at these places [KEYS], of which each line sees the text and what `visible` says."""
        scratch, inside = at - length, at < stop
        asked = real[:, None] & (inside & (scratch >= 0))[None, :]
        seen = tl.load(visible + row[:, None] * reach + scratch[None, :], mask=asked, other=0)
        score = _scored(q, k, ks, scale, SCALED, PRECISION)
        score = tl.where((inside & (scratch < 0))[None, :] | (seen != 0), score, -float("inf"))
        return _weigh(score, v, vs, top, total, sums, SCALED, PRECISION)

    @triton.jit  # type: ignore[untyped-decorator]
    def _chunk(length, reach, most, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
        """Keys of a chunk, by the committed length alone: a row's sum is cut alike whatever is computed beside it."""
        return tl.maximum(tl.cdiv(tl.cdiv(length + reach, UNIT), most), 1) * UNIT

    @triton.jit  # type: ignore[untyped-decorator]
    def _of(b, column, known, BATCH: tl.constexpr):  # type: ignore[no-untyped-def]
        """What the sequence b has in a column [B], which is known already where there is but one."""
        if BATCH == 1:
            return tl.sum(known, 0).to(tl.int32)
        else:
            return tl.load(column + b).to(tl.int32)

    @triton.jit(do_not_specialize=["batch", "width", "blocks", "per", "reach", "most", "slot_pages"])  # type: ignore[untyped-decorator]
    def attend_chunks(  # type: ignore[no-untyped-def]
        query, keys, values, key_scales, value_scales, table, slots, lengths, counts, begins, ends, visible,
        part, peak, mass, scale, batch, width, blocks, per, reach, most, slot_pages, page_stride, head_stride,
        BATCH: tl.constexpr, HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
        REST: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr, UNIT: tl.constexpr, SCALED: tl.constexpr,
        FAR: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """Programs take (sequence, chunk of its keys, key head, block of lines) in turn until none is left: a long text
        is spread over all of them, whatever lies beside it. A tile of keys is read once for all lines of a block, which
        are ROWS and a rest: 33 rows of four heads are 128 and 4 lines."""
        if EARLY:
            wait_for_others()
        every = tl.arange(0, BATCH)
        own, known = every < batch, tl.load(lengths + every, mask=every < batch, other=0).to(tl.int32)
        asked, ended = tl.load(counts + every, mask=own, other=0), tl.load(ends + every, mask=own, other=0).to(tl.int32)
        began, held = tl.load(begins + every, mask=own, other=0), tl.load(slots + every, mask=own, other=0)
        chunks = tl.where(own & (asked > 0), tl.cdiv(ended, _chunk(known, reach, most, UNIT)), 0)
        upto, shares = tl.cumsum(chunks, 0), HEADS * blocks
        d, j = tl.arange(0, D), tl.arange(0, KEYS)
        for item in range(tl.program_id(0), tl.sum(chunks, 0) * shares, tl.num_programs(0)):
            turn, head, block = item // shares, item % shares // blocks, item % blocks
            b = tl.sum((upto <= turn).to(tl.int32), 0)
            chunk = turn - tl.sum(tl.where(every < b, chunks, 0), 0)
            length, end = _of(b, lengths, known, BATCH), _of(b, ends, ended, BATCH)
            count, packed = _of(b, counts, asked, BATCH), _of(b, begins, began, BATCH)
            pages, base = table + _of(b, slots, held, BATCH).to(tl.int64) * slot_pages, head * head_stride
            size = _chunk(length, reach, most, UNIT)
            begin = chunk * size
            stop = tl.minimum(end, begin + size)
            text = tl.minimum(stop, tl.maximum(begin, length // KEYS * KEYS))  # tiles up to here are seen by every row
            there, here = keys + base + j[None, :] * D + d[:, None], values + base + j[:, None] * D + d[None, :]
            first, last, seen = block * per, (block + 1) * per, visible + b * width * reach
            line, row, real, flat = _lines(first, last, count, packed, head, HEADS, G, ROWS)
            q, top, total, sums = _asked(query, flat, real, ROWS, D)
            if REST > 0:
                line2, row2, real2, flat2 = _lines(first + ROWS, last, count, packed, head, HEADS, G, REST)
                q2, top2, total2, sums2 = _asked(query, flat2, real2, REST, D)
            page = _ask(pages, begin, PAGE)
            for start in range(begin, text, KEYS):
                tile, page = _within(page, start, page_stride, PAGE, D, FAR), _ask(pages, start + KEYS, PAGE)
                k, v = tl.load(there + tile).to(q.dtype), tl.load(here + tile).to(q.dtype)
                ks, vs = _scales(key_scales, value_scales, base + tile, j, D, SCALED)
                top, total, sums = _seen_by_all(q, k, v, ks, vs, scale, top, total, sums, SCALED, PRECISION)
                if REST > 0:
                    top2, total2, sums2 = _seen_by_all(q2, k, v, ks, vs, scale, top2, total2, sums2, SCALED, PRECISION)
            page = _ask(pages, text, PAGE)
            for start in range(text, stop, KEYS):
                at = start + j
                tile, page = _within(page, start, page_stride, PAGE, D, FAR), _ask(pages, start + KEYS, PAGE)
                k, v = _edge(there, here, tile, at < stop, q)
                ks, vs = _scales(key_scales, value_scales, base + tile, j, D, SCALED)
                top, total, sums = _seen_by_some(q, k, v, ks, vs, scale, seen, row, real, at, length, stop, reach,
                                                 top, total, sums, SCALED, PRECISION)  # fmt: skip
                if REST > 0:
                    top2, total2, sums2 = _seen_by_some(q2, k, v, ks, vs, scale, seen, row2, real2, at, length, stop,
                                                        reach, top2, total2, sums2, SCALED, PRECISION)  # fmt: skip
            slab = ((b * HEADS + head) * most + chunk).to(tl.int64) * (width * G)
            _leave(part, peak, mass, slab, line, real, top, total, sums, D)
            if REST > 0:
                _leave(part, peak, mass, slab, line2, real2, top2, total2, sums2, D)

    @triton.jit(do_not_specialize=["width", "kv_heads", "reach", "most"])  # type: ignore[untyped-decorator]
    def merge_chunks(  # type: ignore[no-untyped-def]
        part, peak, mass, lengths, counts, begins, ends, out, width, kv_heads, reach, most, G: tl.constexpr,
        D: tl.constexpr, UNIT: tl.constexpr, SPAN: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """A row's chunks in their order, SPAN at a time."""
        if EARLY:
            wait_for_others()
        cell, head = tl.program_id(0), tl.program_id(1)
        b, new = cell // width, cell % width
        real = new < tl.load(counts + b)
        size = _chunk(tl.load(lengths + b).to(tl.int32), reach, most, UNIT)
        chunks = tl.where(real, tl.cdiv(tl.load(ends + b).to(tl.int32), size), 0)
        d, turn = tl.arange(0, D), tl.arange(0, SPAN)
        first = ((b * kv_heads + head // G) * most).to(tl.int64) * (width * G) + new * G + head % G
        top, total, sums = -float("inf"), 0.0, tl.zeros((D,), tl.float32)
        for start in range(0, chunks, SPAN):
            inside = start + turn < chunks
            at = first + (start + turn) * (width * G)
            parts = tl.load(part + at[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
            peaks = tl.load(peak + at, mask=inside, other=-float("inf"))
            masses = tl.load(mass + at, mask=inside, other=0.0)
            higher = tl.maximum(top, tl.max(peaks, axis=0))
            safe = tl.where(higher == -float("inf"), 0.0, higher)
            fade, older = tl.exp2(peaks - safe), tl.exp2(top - safe)
            total = total * older + tl.sum(masses * fade, axis=0)
            sums = sums * older + tl.sum(parts * fade[:, None], axis=0)
            top = higher
        row = tl.load(begins + b) + new
        merged = sums / tl.where(total > 0, total, 1.0)
        shown = (d >= 0) & (real | PADDED)  # padding's zeros, where padding has rows of its own
        tl.store(out + (row * kv_heads * G + head) * D + d, merged.to(out.dtype.element_ty), mask=shown)

    @triton.jit(do_not_specialize=["batch", "kv_heads", "slot_pages"])  # type: ignore[untyped-decorator]
    def attend_prompts(  # type: ignore[no-untyped-def]
        query, keys, values, key_scales, value_scales, table, slots, lengths, counts, begins, out,
        scale, batch, kv_heads, slot_pages, page_stride, head_stride,
        BATCH: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
        PAGE: tl.constexpr, SCALED: tl.constexpr, FAR: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Many new rows after each text, every one of which sees those before it. The last lines see most, so they come
        first; a program without lines has nothing to store."""
        every = tl.arange(0, BATCH)
        lines = tl.load(counts + every, mask=every < batch, other=0).to(tl.int32) * G
        blocks = tl.cdiv(lines, ROWS)
        upto, turn = tl.cumsum(blocks, 0), tl.sum(blocks, 0) - 1 - tl.program_id(0)
        b = tl.sum(((upto <= turn) & (every < batch - 1)).to(tl.int32), 0)
        block, head = turn - tl.sum(tl.where(every < b, blocks, 0), 0), tl.program_id(1)
        length, count = tl.load(lengths + b).to(tl.int32), tl.load(counts + b).to(tl.int32)
        count = tl.where(turn >= 0, count, 0)
        pages, base = table + tl.maximum(tl.load(slots + b), 0) * slot_pages, head * head_stride
        packed, first = tl.load(begins + b).to(tl.int32), tl.maximum(block, 0) * ROWS
        _line, row, real, flat = _lines(first, count * G, count, packed, head, kv_heads, G, ROWS)
        d, j = tl.arange(0, D), tl.arange(0, KEYS)
        q, top, total, sums = _asked(query, flat, real, ROWS, D)
        stop = tl.where(first < count * G, length + tl.minimum(count, (first + ROWS - 1) // G + 1), 0)
        text = tl.minimum(stop, (length + first // G + 1) // KEYS * KEYS)  # tiles up to here are seen by every row
        there, here = keys + base + j[None, :] * D + d[:, None], values + base + j[:, None] * D + d[None, :]
        page = _ask(pages, 0, PAGE)
        for start in range(0, text, KEYS):
            tile, page = _within(page, start, page_stride, PAGE, D, FAR), _ask(pages, start + KEYS, PAGE)
            k, v = tl.load(there + tile).to(q.dtype), tl.load(here + tile).to(q.dtype)
            ks, vs = _scales(key_scales, value_scales, base + tile, j, D, SCALED)
            top, total, sums = _seen_by_all(q, k, v, ks, vs, scale, top, total, sums, SCALED, PRECISION)
        page = _ask(pages, text, PAGE)
        for start in range(text, stop, KEYS):
            at = start + j
            tile, page = _within(page, start, page_stride, PAGE, D, FAR), _ask(pages, start + KEYS, PAGE)
            k, v = _edge(there, here, tile, at < stop, q)
            ks, vs = _scales(key_scales, value_scales, base + tile, j, D, SCALED)
            score = _scored(q, k, ks, scale, SCALED, PRECISION)
            score = tl.where(at[None, :] <= length + row[:, None], score, -float("inf"))
            top, total, sums = _weigh(score, v, vs, top, total, sums, SCALED, PRECISION)
        found = sums / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + flat[:, None] * D + d[None, :], found.to(out.dtype.element_ty), mask=real[:, None])

    @triton.jit(do_not_specialize=["reach", "slot_pages"])  # type: ignore[untyped-decorator]
    def move_path(  # type: ignore[no-untyped-def]
        data, table, slots, lengths, counts, keep, reach, slot_pages, plane_stride, page_stride, head_stride,
        PAGE: tl.constexpr, D: tl.constexpr,
    ):  # fmt: skip
        b, plane, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        length, count = tl.load(lengths + b), tl.load(counts + b)
        pages = table + tl.load(slots + b) * slot_pages
        base = data + plane.to(tl.int64) * plane_stride + head * head_stride + tl.arange(0, D)
        for i in range(count):  # a row moves down or stays, so nothing is overwritten before it is read
            source = tl.load(keep + b * reach + i)
            if source != i:
                old, new = length + source, length + i
                row = tl.load(base + _within(_ask(pages, old, PAGE), old, page_stride, PAGE, D, True))
                tl.store(base + _within(_ask(pages, new, PAGE), new, page_stride, PAGE, D, True), row)
