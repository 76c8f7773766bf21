"""The kernel of `runtime.cuda.pad_rows`: packed rows of a batch laid out so that every sequence has as many."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None


if triton is not None:

    @triton.jit
    def _packed(begin, count, n, rows):  # type: ignore[no-untyped-def]
        """The packed row that cell n of a sequence holds."""
        return tl.minimum(tl.maximum(begin + tl.minimum(n, count - 1), 0), rows - 1)

    @triton.jit(do_not_specialize=["rows", "width", "slots", "capacity", "positions", "slot_pages"])  # type: ignore[untyped-decorator]
    def pad_rows_kernel(  # type: ignore[no-untyped-def]
        slot_, length_, first_, count_, begin_, depth, parent, given, seen, table,
        begins, ends, position, place, visible, laid,
        rows, width, channels, slots, capacity, positions, slot_pages,
        PAGE: tl.constexpr, REACH: tl.constexpr, SEEN: tl.constexpr, CHAIN: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        cell = tl.program_id(0)
        b, n = cell // width, cell % width
        slot, length, first = tl.load(slot_ + b), tl.load(length_ + b), tl.load(first_ + b)
        count, begin = tl.load(count_ + b), tl.load(begin_ + b)
        row = _packed(begin, count, n, rows)
        real, at = n < count, length + first + n
        line_of = tl.where(slot < 0, slots - 1, slot)
        tl.store(position + cell, tl.minimum(length + tl.load(depth + row), positions - 1))
        stored = real & (at < capacity)
        page = tl.load(table + line_of * slot_pages + at // PAGE, mask=stored, other=0).to(tl.int64)
        tl.store(place + cell, tl.where(stored, page * PAGE + at % PAGE, -1))
        if n == 0:
            tl.store(begins + b, b.to(tl.int64) * width)
            tl.store(ends + b, tl.minimum(length + first + count, capacity))
        column = tl.arange(0, SEEN)
        inside = column < REACH
        block = seen + line_of * (REACH * REACH)
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
        line = tl.load(block + tl.minimum(tl.maximum(above, 0), REACH - 1) * REACH + column, mask=older, other=0)
        line = tl.where(sees, 1, line).to(tl.uint8)
        tl.store(visible + cell * REACH + column, line, mask=inside)
        number = tl.minimum(first + n, REACH - 1)
        tl.store(block + number * REACH + column, line, mask=inside & real)
        i = tl.arange(0, BLOCK)
        for start in range(0, channels, BLOCK):
            kept = start + i < channels
            here = tl.load(given + row * channels + start + i, mask=kept, other=0)
            tl.store(laid + cell * channels + start + i, here, mask=kept)
