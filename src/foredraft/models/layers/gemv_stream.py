"""A product of few rows with a large matrix takes the time of reading the matrix: a kernel that does little else.

The weights are the left operand, out.T = weight @ x.T. So a tile of weights is turned wide in the registers in which it
is multiplied, once, however many rows there are. Matrices with few outputs are shared out along their inputs too: each
program leaves a partial sum, and the last to arrive at a tile adds them in their order, hence the same sum every time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import Linear

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None

FEW_ROWS = 64  # up to here weights are streamed; beyond, the product is bound by arithmetic
NARROW = 1024  # channels of a model whose products end before memory is busy
LIBRARY_ROWS = 40  # up to here the library is no quicker with wide weights
SLICE = 4096  # outputs that are turned wide at a time, so that no whole matrix of wide numbers is ever held
LEAST_COLUMNS = 16  # of a program, so a matrix has at most outputs / 16 tiles
WARPS = 1024  # that keep the memory of a large GPU busy, eight for each of its 132 multiprocessors or a little less
MOST_SPLITS = 8


class Plan(NamedTuple):
    """How a product is cut up. With 4 or 8 warps and 16 rows or more the weights pass through wgmma, else mma."""

    columns: int  # outputs of a program
    depth: int  # inputs of a step
    splits: int  # programs that share the inputs of an output
    warps: int
    stages: int  # steps that are read ahead, and one


# (rows up to, outputs, inputs, bytes of a weight): on an H200, where more than 2% quicker than the rule.
MEASURED: dict[tuple[int, int, int, int], Plan] = {
    (8, 6144, 4096, 1): Plan(64, 128, 6, 4, 3),  # 2596 GB/s
    (8, 4096, 4096, 1): Plan(64, 128, 8, 4, 3),  # 2209 GB/s
    (8, 28672, 4096, 1): Plan(128, 256, 1, 4, 3),  # 3729 GB/s
    (8, 10240, 8192, 1): Plan(32, 128, 4, 2, 3),  # 3478 GB/s
    (8, 57344, 8192, 1): Plan(32, 128, 1, 2, 3),  # 4098 GB/s
    (32, 6144, 4096, 1): Plan(64, 64, 8, 2, 3),  # 1815 GB/s
    (32, 28672, 4096, 1): Plan(64, 128, 1, 2, 3),  # 2927 GB/s
    (32, 10240, 8192, 1): Plan(64, 128, 3, 2, 3),  # 2728 GB/s
    (32, 8192, 8192, 1): Plan(64, 128, 4, 2, 3),  # 2738 GB/s
    (32, 57344, 8192, 1): Plan(64, 128, 2, 2, 3),  # 3184 GB/s
    (32, 8192, 28672, 1): Plan(64, 128, 4, 2, 3),  # 3237 GB/s
    (40, 6144, 4096, 1): Plan(64, 128, 4, 2, 3),  # 1551 GB/s
    (40, 4096, 4096, 1): Plan(64, 128, 4, 2, 3),  # 1395 GB/s
    (40, 28672, 4096, 1): Plan(64, 128, 1, 2, 3),  # 2463 GB/s
    (40, 10240, 8192, 1): Plan(64, 128, 3, 2, 3),  # 2389 GB/s
    (40, 57344, 8192, 1): Plan(64, 128, 2, 2, 3),  # 2807 GB/s
    (8, 6144, 4096, 2): Plan(32, 128, 2, 2, 4),  # 3379 GB/s
    (40, 6144, 4096, 2): Plan(64, 128, 2, 2, 4),  # 2909 GB/s
    (40, 4096, 4096, 2): Plan(64, 128, 3, 2, 4),  # 2467 GB/s
    (40, 28672, 4096, 2): Plan(128, 128, 1, 4, 3),  # 3705 GB/s
    (40, 4096, 14336, 2): Plan(64, 128, 3, 2, 4),  # 3308 GB/s
    (40, 128256, 4096, 2): Plan(128, 128, 1, 4, 3),  # 4181 GB/s
    (8, 128256, 4096, 2): Plan(32, 256, 1, 2, 4),  # 4386 GB/s
    (8, 128256, 2048, 2): Plan(32, 256, 1, 2, 4),  # 4260 GB/s
    (32, 6144, 4096, 2): Plan(64, 128, 2, 4, 4),  # 3044 GB/s
    (32, 4096, 4096, 2): Plan(64, 128, 2, 4, 4),  # 2909 GB/s
    (32, 28672, 4096, 2): Plan(64, 128, 1, 4, 4),  # 4041 GB/s
    (32, 4096, 14336, 2): Plan(64, 128, 4, 4, 4),  # 3618 GB/s
}


def plan_for(rows: int, outputs: int, inputs: int, size: int) -> Plan:
    """The measured plan, or one by rule: rows are padded to 8, 16, 32 or more, and all multiprocessors get work."""
    padded = sum(_pieces(rows))
    measured = MEASURED.get((padded, outputs, inputs, size))
    if measured is not None:
        return measured
    narrow, wide = padded == 8, padded == 32 and outputs >= 8192  # large tiles read x less often
    columns, splits = 128 if wide else 64, 1
    depth, warps, stages = (256 // size, 4, 4) if narrow else (128 // size, 2 if size == 1 else 4, 3)
    while splits < MOST_SPLITS and outputs * splits * warps < WARPS * columns and inputs >= 4 * splits * depth:
        splits *= 2
    return Plan(columns, depth, splits, warps, stages)


def multiply(x: Tensor, weight: Tensor, scale: Tensor | None, residual: Tensor | None, arrivals: Tensor) -> Tensor:
    """residual + x @ (weight * scale).T; on CUDA by the kernel if the rows are few."""
    if x.is_cuda and x.dim() == 2 and len(x) <= FEW_ROWS:
        return multiply_fused(x, weight, scale, residual, arrivals=arrivals)
    return multiply_reference(x, weight, scale, residual)


def can_stream(norm: Tensor) -> bool:
    """Whether products of a model with this norm [d] are streamed: bf16 on CUDA, and wide enough to gain by it."""
    return triton is not None and norm.is_cuda and norm.dtype == torch.bfloat16 and len(norm) > NARROW


class StreamedLinear(nn.Module):
    """A Linear on CUDA whose weights are streamed by the kernel; many rows go to the library."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("arrivals", arrivals_for(linear.weight), persistent=False)
        self.arrivals: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > LIBRARY_ROWS or self.bias is not None:
            return F.linear(x, self.weight, self.bias)
        return multiply(x, self.weight, None, None, self.arrivals)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if len(x) > LIBRARY_ROWS or self.bias is not None:
            return residual + F.linear(x, self.weight, self.bias)
        return multiply(x, self.weight, None, residual, self.arrivals)


def multiply_reference(x: Tensor, weight: Tensor, scale: Tensor | None, residual: Tensor | None) -> Tensor:
    """Slice by slice, so that only a slice is ever wide."""
    wide = torch.ones(len(weight), device=x.device) if scale is None else scale
    slices = zip(torch.split(weight, SLICE), torch.split(wide, SLICE), strict=True)
    product = torch.cat([F.linear(x, part.to(x.dtype)) * own.to(x.dtype) for part, own in slices], dim=-1)
    return product if residual is None else residual + product


def arrivals_for(weight: Tensor) -> Tensor:
    """Counters of the programs that have left a sum at each tile: zero before a product, and again after it.

    They belong to one matrix, so that streams which run side by side with different matrices do not meet.
    """
    return torch.zeros(-(-len(weight) // LEAST_COLUMNS), dtype=torch.int32, device=weight.device)


def multiply_fused(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    residual: Tensor | None,
    plan: Plan | None = None,
    arrivals: Tensor | None = None,
) -> Tensor:
    """The kernel, for at most FEW_ROWS rows."""
    (rows, inputs), outputs = x.shape, len(weight)
    plan = plan or plan_for(rows, outputs, inputs, weight.element_size())
    few, more = _pieces(rows)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    partial = out
    if plan.splits > 1:
        partial = torch.empty((plan.splits, rows, outputs), dtype=torch.float32, device=x.device)
        arrivals = arrivals_for(weight) if arrivals is None else arrivals
    _product[(triton.cdiv(outputs, plan.columns), plan.splits)](
        x.contiguous(), weight, out if scale is None else scale, out if residual is None else residual.contiguous(),
        out, partial, out if arrivals is None else arrivals, rows, outputs, inputs,
        ROWS=few, MORE=more, COLUMNS=plan.columns, DEPTH=plan.depth, SPLITS=plan.splits,
        FORM=_form(x, weight), SCALED=scale is not None, ADD=residual is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return out


def _pieces(rows: int) -> tuple[int, int]:
    """Rows are padded to one piece of 8, 16 or 32, or to 32 and a second piece."""
    first, left = min(rows, 32), max(rows - 32, 0)
    return max(8, _power(first)), max(8, _power(left)) if left else 0


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _form(x: Tensor, weight: Tensor) -> str:
    """How weights are turned wide: by bits, in words of the GPU that the interpreter does not know, or by a cast."""
    forms = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
    return forms.get(weight.dtype, "cast") if x.is_cuda and x.dtype == torch.bfloat16 else "cast"


# Four int8 b become four bf16: 0x4300 is 128 with steps of 1, so 0x4300 | (b & 0x7f) is 128 + (b & 0x7f), and
# 0x4300 | (b & 0x80) is 128 or, as the sign reaches the exponent, 256. Their difference is b, without rounding.
FROM_INT8 = """{
    .reg .b32 low, high, a, b;
    prmt.b32 low, $2, 0, 0x4140;
    prmt.b32 high, $2, 0, 0x4342;
    lop3.b32 a, low, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 b, low, 0x00800080, 0x43004300, 0xea;
    sub.rn.bf16x2 $0, a, b;
    lop3.b32 a, high, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 b, high, 0x00800080, 0x43004300, 0xea;
    sub.rn.bf16x2 $1, a, b;
}"""

# Four e4m3 become four bf16: sign, exponent and mantissa go to their places (bits 15, 10 to 7 and 6 to 4); the number
# is then too small by 2 ** (127 - 7), subnormal or not, and 0x7b80 is 2 ** 120.
FROM_FP8 = """{
    .reg .b32 low, high, a, scale;
    mov.b32 scale, 0x7b807b80;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    shr.u32 a, low, 4;
    and.b32 a, a, 0x07f007f0;
    lop3.b32 a, low, 0x80008000, a, 0xea;
    mul.rn.bf16x2 $0, a, scale;
    shr.u32 a, high, 4;
    and.b32 a, a, 0x07f007f0;
    lop3.b32 a, high, 0x80008000, a, 0xea;
    mul.rn.bf16x2 $1, a, scale;
}"""


if triton is not None:
    _INT8, _FP8 = tl.constexpr(FROM_INT8), tl.constexpr(FROM_FP8)

    @triton.jit  # type: ignore[untyped-decorator]
    def _wide(read, FORM: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
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

    @triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
    def _product(  # type: ignore[no-untyped-def]
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
            wide = _wide(read, FORM, x.dtype.element_ty)
            here = x + row[None, :] * inputs + (start + k)[:, None]
            given = tl.load(here, mask=(row < rows)[None, :] & inside[:, None], other=0.0)
            total = tl.dot(wide, given, total, input_precision=PRECISION)
            if MORE > 0:
                here = x + later[None, :] * inputs + (start + k)[:, None]
                given = tl.load(here, mask=(later < rows)[None, :] & inside[:, None], other=0.0)
                rest = tl.dot(wide, given, rest, input_precision=PRECISION)
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
