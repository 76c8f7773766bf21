"""The kernel of `models.layers.gemv_stream`: a product of few rows with a large matrix, whose weights are read once.

Weights are turned wide by words that every NVIDIA GPU with bf16 has (sm_80 and later).
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None


# Four int8 b become four bf16: 0x4300 is 128 with steps of 1, so 0x4300 | (b & 0x7f) is 128 + (b & 0x7f), and
# 0x4300 | (b & 0x80) is 128 or, as the sign reaches the exponent, 256. Their difference is b, without rounding; 0xc300
# makes the second one negative.
FROM_INT8 = """{
    .reg .b32 low, high, a, b, one;
    mov.b32 one, 0x3f803f80;
    prmt.b32 low, $2, 0, 0x4140;
    prmt.b32 high, $2, 0, 0x4342;
    lop3.b32 a, low, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 b, low, 0x00800080, 0xc300c300, 0xea;
    fma.rn.bf16x2 $0, a, one, b;
    lop3.b32 a, high, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 b, high, 0x00800080, 0xc300c300, 0xea;
    fma.rn.bf16x2 $1, a, one, b;
}"""

# Four e4m3 become four bf16: sign, exponent and mantissa go to their places (bits 15, 10 to 7 and 6 to 4); the number
# is then too small by 2 ** (127 - 7), subnormal or not, and 0x7b80 is 2 ** 120.
FROM_FP8 = """{
    .reg .b32 low, high, a, scale, none;
    mov.b32 scale, 0x7b807b80;
    mov.b32 none, 0x80008000;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    shr.u32 a, low, 4;
    and.b32 a, a, 0x07f007f0;
    lop3.b32 a, low, 0x80008000, a, 0xea;
    fma.rn.bf16x2 $0, a, scale, none;
    shr.u32 a, high, 4;
    and.b32 a, a, 0x07f007f0;
    lop3.b32 a, high, 0x80008000, a, 0xea;
    fma.rn.bf16x2 $1, a, scale, none;
}"""


if triton is not None:
    _INT8, _FP8 = tl.constexpr(FROM_INT8), tl.constexpr(FROM_FP8)

    @triton.jit  # type: ignore[untyped-decorator]
    def wide(read, FORM: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
        if FORM == "int8":
            return tl.inline_asm_elementwise(_INT8, "=r,=r,r", [read], tl.bfloat16, is_pure=True, pack=4)
        if FORM == "fp8":
            return tl.inline_asm_elementwise(_FP8, "=r,=r,r", [read], tl.bfloat16, is_pure=True, pack=4)
        return read.to(dtype)

    @triton.jit
    def _leave(total, row, column, partial, rows, outputs):  # type: ignore[no-untyped-def]
        """Keep this program's share of a sum."""
        own = partial + tl.program_id(1).to(tl.int64) * rows * outputs
        shown = (row < rows)[None, :] & (column < outputs)[:, None]
        tl.store(own + row[None, :] * outputs + column[:, None], total, mask=shown)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gather(total, row, column, partial, rows, outputs, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """The sum of all shares, in their order, past the first cache, which does not see what others wrote."""
        shown = (row < rows)[None, :] & (column < outputs)[:, None]
        there = partial + row[None, :] * outputs + column[:, None]
        total = tl.zeros_like(total)
        for _ in tl.static_range(SPLITS):
            total += tl.load(there, mask=shown, other=0.0, cache_modifier=".cg")
            there += rows.to(tl.int64) * outputs
        return total

    @triton.jit  # type: ignore[untyped-decorator]
    def _finish(  # type: ignore[no-untyped-def]
        total, row, column, scale, residual, out, rows, outputs, SCALED: tl.constexpr, ADD: tl.constexpr
    ):
        shown = (row < rows)[None, :] & (column < outputs)[:, None]
        target = row[None, :] * outputs + column[:, None]
        if SCALED:
            total = total * tl.load(scale + column, mask=column < outputs, other=0.0)[:, None]
        answer = total.to(out.dtype.element_ty)
        if ADD:
            before = tl.load(residual + target, mask=shown, other=0.0)
            answer = (before.to(tl.float32) + answer.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + target, answer, mask=shown)

    @triton.jit  # type: ignore[untyped-decorator]
    def end(  # type: ignore[no-untyped-def]
        total, rest, row, later, column, scale, residual, out, partial, arrivals, rows, outputs,
        MORE: tl.constexpr, SPLITS: tl.constexpr, SCALED: tl.constexpr, ADD: tl.constexpr,
    ):  # fmt: skip
        """Write the results; where inputs are shared out, the last program to arrive does, for all."""
        last = True
        if SPLITS > 1:
            _leave(total, row, column, partial, rows, outputs)
            if MORE > 0:
                _leave(rest, later, column, partial, rows, outputs)
            tl.debug_barrier()  # all threads have stored; the count then tells other programs of it
            last = tl.atomic_add(arrivals + tl.program_id(0), 1, sem="acq_rel", scope="gpu") == SPLITS - 1
        if last:
            if SPLITS > 1:
                tl.store(arrivals + tl.program_id(0), 0)
                total = _gather(total, row, column, partial, rows, outputs, SPLITS)
                if MORE > 0:
                    rest = _gather(rest, later, column, partial, rows, outputs, SPLITS)
            _finish(total, row, column, scale, residual, out, rows, outputs, SCALED, ADD)
            if MORE > 0:
                _finish(rest, later, column, scale, residual, out, rows, outputs, SCALED, ADD)

    @triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
    def streamed_product(  # type: ignore[no-untyped-def]
        x, weight, scale, residual, out, partial, arrivals, rows, outputs, inputs,
        ROWS: tl.constexpr, MORE: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SPLITS: tl.constexpr,
        FORM: tl.constexpr, SCALED: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        row, later = tl.arange(0, ROWS), ROWS + tl.arange(0, MORE if MORE > 0 else 8)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        k = tl.arange(0, DEPTH)
        share = tl.cdiv(tl.cdiv(inputs, DEPTH), SPLITS) * DEPTH
        first = tl.program_id(1) * share
        there = weight + column[:, None].to(tl.int64) * inputs + k[None, :]
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
        rest = tl.zeros((COLUMNS, MORE if MORE > 0 else 8), tl.float32)
        for start in range(first, tl.minimum(first + share, inputs), DEPTH):
            inside = k < inputs - start
            read = tl.load(there + start, mask=(column < outputs)[:, None] & inside[None, :], other=0.0)
            weights = wide(read, FORM, x.dtype.element_ty)
            here = x + row[None, :] * inputs + (start + k)[:, None]
            given = tl.load(here, mask=(row < rows)[None, :] & inside[:, None], other=0.0)
            total = tl.dot(weights, given, total, input_precision=PRECISION)
            if MORE > 0:
                here = x + later[None, :] * inputs + (start + k)[:, None]
                given = tl.load(here, mask=(later < rows)[None, :] & inside[:, None], other=0.0)
                rest = tl.dot(weights, given, rest, input_precision=PRECISION)
        end(
            total, rest, row, later, column, scale, residual, out, partial, arrivals, rows, outputs,
            MORE, SPLITS, SCALED, ADD,
        )  # fmt: skip
