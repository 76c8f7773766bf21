"""Kernels of `models.quantisation.grouped_product`: products of few rows with a matrix whose scales belong to groups of
inputs, and the matrix as plain numbers.

Codes are whole numbers that bf16 holds exactly (but for NF4's curve), and scales meet sums, not weights: a weight is
never rounded. Words as in `streamed_gemv`: sm_80 and later; without them the same by ordinary operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

try:
    import triton
    import triton.language as tl

    from .streamed_gemv import end, wide
except ImportError:  # a CPU build of torch comes without it
    triton = None

# Four bytes: of each the low half n, as bf16, plus the fourth or fifth operand. 0x43 above the byte makes it 128 + n.
FROM_LOW4 = """{
    .reg .b32 a, b, one;
    mov.b32 one, 0x3f803f80;
    and.b32 a, $2, 0x0f0f0f0f;
    prmt.b32 b, a, 0x43434343, 0x4140;
    fma.rn.bf16x2 $0, b, one, $3;
    prmt.b32 b, a, 0x43434343, 0x4342;
    fma.rn.bf16x2 $1, b, one, $4;
}"""
FROM_HIGH4 = FROM_LOW4.replace("and.b32 a, $2, 0x0f", "shr.u32 a, $2, 4;\n    and.b32 a, a, 0x0f")


# Four bytes: of each one half n becomes the n-th of 16 bf16 numbers. A permutation picks among 8 bytes by 3 bits of n,
# from both halves of the table; the fourth bit, spread over its byte, chooses. The numbers' lower and upper bytes are
# looked up apart, then put together.
FROM_CURVE = """{{
    .reg .b32 n, pick, most, p, q, low, high;
    {half}
    and.b32 n, n, 0x0f0f0f0f;
    and.b32 pick, n, 0x07070707;
    shr.u32 p, pick, 4;
    or.b32 pick, pick, p;
    prmt.b32 pick, pick, 0, 0x4420;
    shl.b32 most, n, 4;
    prmt.b32 most, most, 0, 0xba98;
    prmt.b32 p, {0}, {1}, pick;
    prmt.b32 q, {2}, {3}, pick;
    lop3.b32 low, most, q, p, 0xca;
    prmt.b32 p, {4}, {5}, pick;
    prmt.b32 q, {6}, {7}, pick;
    lop3.b32 high, most, q, p, 0xca;
    prmt.b32 $0, low, high, 0x5140;
    prmt.b32 $1, low, high, 0x7362;
}}"""


def from_curve(values: Sequence[float], high: bool) -> str:
    """The code above for a table, rounded to bf16."""
    bits = [int.from_bytes(pack("<f", value), "little") for value in values]
    halves = [(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in bits]  # to the nearest, ties to even
    table = [
        sum((halves[4 * word + n] >> shift & 255) << 8 * n for n in range(4)) for shift in (0, 8) for word in range(4)
    ]
    return FROM_CURVE.format(*map(hex, table), half="shr.u32 n, $2, 4;" if high else "mov.b32 n, $2;")


# The 16 numbers of codes of half a byte: GGUF's IQ4 formats; normal deviates of equal probability (QLoRA's NF4).
CURVES: dict[str, tuple[float, ...]] = {
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
}  # fmt: skip


if triton is not None:
    _LOW4, _HIGH4 = tl.constexpr(FROM_LOW4), tl.constexpr(FROM_HIGH4)
    _LOW_IQ4, _HIGH_IQ4 = (tl.constexpr(from_curve(CURVES["iq4"], high)) for high in (False, True))
    _LOW_NF4, _HIGH_NF4 = (tl.constexpr(from_curve(CURVES["nf4"], high)) for high in (False, True))

    @triton.jit  # type: ignore[untyped-decorator]
    def _looked_up(read, HIGH: tl.constexpr, CURVE: tl.constexpr):  # type: ignore[no-untyped-def]
        low: tl.constexpr = _LOW_IQ4 if CURVE == "iq4" else _LOW_NF4
        high: tl.constexpr = _HIGH_IQ4 if CURVE == "iq4" else _HIGH_NF4
        code: tl.constexpr = high if HIGH else low
        return tl.inline_asm_elementwise(code, "=r,=r,r", [read], tl.bfloat16, is_pure=True, pack=4)

    @triton.jit  # type: ignore[untyped-decorator]
    def _half_wide(  # type: ignore[no-untyped-def]
        read, zero, table, HIGH: tl.constexpr, WORDS: tl.constexpr, CURVE: tl.constexpr, dtype: tl.constexpr
    ):
        """Of each byte the low or the high half, as code - zero or the curve's number."""
        if WORDS and CURVE == "":
            code: tl.constexpr = _HIGH4 if HIGH else _LOW4
            minus = tl.broadcast_to((-128.0 - zero).to(tl.bfloat16)[:, None], read.shape)
            return tl.inline_asm_elementwise(code, "=r,=r,r,r,r", [read, minus], tl.bfloat16, is_pure=True, pack=4)
        if WORDS:
            return _looked_up(read, HIGH, CURVE)
        half = (read >> 4) if HIGH else (read & 15)
        if CURVE != "":
            return tl.load(table + half).to(dtype)
        return (half.to(tl.float32) - zero[:, None]).to(dtype)

    @triton.jit  # type: ignore[untyped-decorator]
    def _of_group(values, outer, at, column, outputs, inputs, GROUP: tl.constexpr, OUTER: tl.constexpr):  # type: ignore[no-untyped-def]
        """What every output has for the group that input `at` is in, times what it has for a group of groups."""
        shown = (column < outputs) & (at < inputs)
        found = tl.load(values + at // GROUP * outputs + column, mask=shown, other=0.0).to(tl.float32)
        if OUTER > 0:
            found *= tl.load(outer + at // OUTER * outputs + column, mask=shown, other=0.0).to(tl.float32)
        return found

    @triton.jit
    def _rows_at(x, row, k, rows, inputs, kept):  # type: ignore[no-untyped-def]
        """x.T at some inputs, [K, R]; zeros where they are not kept."""
        held = (row < rows)[None, :] & ((k < inputs) & kept)[:, None]
        return tl.load(x + row[None, :] * inputs + k[:, None], mask=held, other=0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_terms(  # type: ignore[no-untyped-def]
        total, one, two, given, other, s, t, TERMS: tl.constexpr, SAME: tl.constexpr, PRECISION: tl.constexpr
    ):
        """total + s * (one @ given) + t * (two @ other), where there are two terms; SAME: s and t are the same."""
        part = tl.dot(one, given, input_precision=PRECISION)
        if SAME:
            part = tl.dot(two, other, part, input_precision=PRECISION)
        total += part * s[:, None]
        if TERMS == 2 and not SAME:
            total += tl.dot(two, other, input_precision=PRECISION) * t[:, None]
        return total

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_block(  # type: ignore[no-untyped-def]
        total, x, row, k, rows, inputs, one, two, s, t, m, n,
        SPAN: tl.constexpr, HALVED: tl.constexpr, TERMS: tl.constexpr, SAME: tl.constexpr, OFFSET: tl.constexpr,
        PRECISION: tl.constexpr,
    ):  # fmt: skip
        """What a block of inputs adds to some rows."""
        low = tl.arange(0, SPAN) < SPAN // 2
        given = _rows_at(x, row, k, rows, inputs, low if HALVED else low | True)
        other = given
        if TERMS == 2:
            other = _rows_at(x, row, k if HALVED else k + SPAN, rows, inputs, ~low if HALVED else low | True)
        total = _add_terms(total, one, two, given, other, s, t, TERMS, SAME, PRECISION)
        if OFFSET:  # s * code + m: the second part is m times the sum of x
            ones = tl.full(one.shape, 1.0, one.dtype)
            total = _add_terms(total, ones, ones, given, other, m, n, TERMS, SAME, PRECISION)
        return total

    @triton.jit  # type: ignore[untyped-decorator]
    def _of_block(  # type: ignore[no-untyped-def]
        scale, outer, least, outer_least, at, column, outputs, inputs,
        GROUP: tl.constexpr, OUTER: tl.constexpr, APART: tl.constexpr, CENTER: tl.constexpr, LEAST: tl.constexpr,
    ):  # fmt: skip
        """Scales of both terms of the block at an input, then their zeros or offsets; APART = 0: both have the same."""
        s = _of_group(scale, outer, at, column, outputs, inputs, GROUP, OUTER)
        m = tl.full(s.shape, CENTER, tl.float32)
        if LEAST:
            m = _of_group(least, outer_least, at, column, outputs, inputs, GROUP, OUTER)
        t, n = s, m
        if APART > 0:
            t = _of_group(scale, outer, at + APART, column, outputs, inputs, GROUP, OUTER)
            if LEAST:
                n = _of_group(least, outer_least, at + APART, column, outputs, inputs, GROUP, OUTER)
        return s, t, m, n

    @triton.jit  # type: ignore[untyped-decorator]
    def _eight(read, FORM: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
        """A byte as a number: an integer, or e4m3 with its fields at the places of float32 (too small by 2 ** 120)."""
        if FORM == "fp8 cast":
            bits = read.to(tl.int32)
            bits = (bits & 0x7F) << 20 | (bits & 0x80) << 24
            return (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(dtype)
        return wide(read, FORM, dtype)

    @triton.jit  # type: ignore[untyped-decorator]
    def _terms(  # type: ignore[no-untyped-def]
        read, m, n, table, BITS: tl.constexpr, FORM: tl.constexpr, CURVE: tl.constexpr, LEAST: tl.constexpr,
        dtype: tl.constexpr,
    ):  # fmt: skip
        """The weights of a block's terms but for their scales."""
        WORDS: tl.constexpr = FORM != "cast"
        if BITS == 4:
            if LEAST == "offset":
                m, n = tl.zeros_like(m), tl.zeros_like(n)
            one = _half_wide(read, m, table, False, WORDS, CURVE, dtype)
            return one, _half_wide(read, n, table, True, WORDS, CURVE, dtype)
        one = _eight(read, FORM, dtype)
        if LEAST == "zero":
            one = (one.to(tl.float32) - m[:, None]).to(dtype)
        return one, one

    @triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
    def grouped_product(  # type: ignore[no-untyped-def]
        x, codes, table, scale, outer, least, outer_least, residual, out, partial, arrivals, rows, outputs, inputs,
        ROWS: tl.constexpr, MORE: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr, SPLITS: tl.constexpr,
        GROUP: tl.constexpr, OUTER: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, CURVE: tl.constexpr,
        CENTER: tl.constexpr, LEAST: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Codes lie in blocks of inputs, [blocks, outputs, SPAN bytes]; a byte holds one input, or two SPAN apart.

        A block has one or two terms with a scale each: its low and high halves of bytes, or (HALVED) its first and
        second half of inputs. What belongs to groups is asked for a block ahead.
        """
        HALVED: tl.constexpr = GROUP == 16
        TERMS: tl.constexpr = 2 if BITS == 4 or HALVED else 1
        SAME: tl.constexpr = TERMS == 2 and GROUP % (2 * SPAN) == 0
        BLOCK: tl.constexpr = 2 * SPAN if BITS == 4 else SPAN
        APART: tl.constexpr = 0 if SAME or TERMS == 1 else GROUP if HALVED else SPAN
        OFFSET: tl.constexpr = LEAST == "offset"
        row, later = tl.arange(0, ROWS), ROWS + tl.arange(0, MORE if MORE > 0 else 8)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        k = tl.arange(0, SPAN)
        share = tl.cdiv(tl.cdiv(inputs, BLOCK), SPLITS) * BLOCK
        first = tl.program_id(1) * share
        there = codes + ((first // BLOCK).to(tl.int64) * outputs + column[:, None]) * SPAN + k[None, :]
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
        rest = tl.zeros((COLUMNS, MORE if MORE > 0 else 8), tl.float32)
        s, t, m, n = _of_block(
            scale, outer, least, outer_least, first, column, outputs, inputs, GROUP, OUTER, APART, CENTER, LEAST != ""
        )
        for start in range(first, tl.minimum(first + share, inputs), BLOCK):
            read = tl.load(there, mask=(column < outputs)[:, None], other=0)
            there += outputs * SPAN
            s_after, t_after, m_after, n_after = _of_block(
                scale, outer, least, outer_least, start + BLOCK, column, outputs, inputs,
                GROUP, OUTER, APART, CENTER, LEAST != "",
            )  # fmt: skip
            one, two = _terms(read, m, n, table, BITS, FORM, CURVE, LEAST, x.dtype.element_ty)
            total = _add_block(
                total, x, row, start + k, rows, inputs, one, two, s, t, m, n,
                SPAN, HALVED, TERMS, SAME, OFFSET, PRECISION,
            )  # fmt: skip
            if MORE > 0:
                rest = _add_block(
                    rest, x, later, start + k, rows, inputs, one, two, s, t, m, n,
                    SPAN, HALVED, TERMS, SAME, OFFSET, PRECISION,
                )  # fmt: skip
            s, t, m, n = s_after, t_after, m_after, n_after
        end(
            total, rest, row, later, column, out, residual, out, partial, arrivals, rows, outputs,
            MORE, SPLITS, False, ADD,
        )  # fmt: skip

    @triton.jit  # type: ignore[untyped-decorator]
    def widened(  # type: ignore[no-untyped-def]
        codes, table, scale, outer, least, outer_least, out, first, last, outputs, inputs,
        COLUMNS: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr, OUTER: tl.constexpr, BITS: tl.constexpr,
        FORM: tl.constexpr, CURVE: tl.constexpr, CENTER: tl.constexpr, LEAST: tl.constexpr,
    ):  # fmt: skip
        """A block of the outputs from first to last as plain numbers, worked out in float32."""
        HALVED: tl.constexpr = GROUP == 16
        TERMS: tl.constexpr = 2 if BITS == 4 or HALVED else 1
        BLOCK: tl.constexpr = 2 * SPAN if BITS == 4 else SPAN
        APART: tl.constexpr = 0 if TERMS == 1 else GROUP if HALVED else SPAN
        here = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        column, start, k = first + here, tl.program_id(1) * BLOCK, tl.arange(0, SPAN)
        place = codes + (tl.program_id(1).to(tl.int64) * outputs + column[:, None]) * SPAN + k[None, :]
        read = tl.load(place, mask=(column < last)[:, None], other=0)
        s, t, m, n = _of_block(
            scale, outer, least, outer_least, start, column, outputs, inputs, GROUP, OUTER, APART, CENTER, LEAST != ""
        )
        one, two = _terms(read, m, n, table, BITS, FORM, CURVE, LEAST, tl.float32)
        target = out + here[:, None].to(tl.int64) * inputs + (start + k)[None, :]
        shown = (column < last)[:, None]
        if HALVED:
            own = tl.where((k < SPAN // 2)[None, :], s[:, None], t[:, None])
            one = one * own + (tl.where((k < SPAN // 2)[None, :], m[:, None], n[:, None]) if LEAST == "offset" else 0.0)
        else:
            one = one * s[:, None] + (m[:, None] if LEAST == "offset" else 0.0)
        tl.store(target, one.to(out.dtype.element_ty), mask=shown & (start + k < inputs)[None, :])
        if BITS == 4:
            two = two * t[:, None] + (n[:, None] if LEAST == "offset" else 0.0)
            tl.store(target + SPAN, two.to(out.dtype.element_ty), mask=shown & (start + SPAN + k < inputs)[None, :])
