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

    from ...kernels.streamed_gemv import streamed_product
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
    padded = sum(pieces(rows))
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
    few, more = pieces(rows)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    partial, form = out, _form(x, weight)
    if plan.splits > 1:
        partial = torch.empty((plan.splits, rows, outputs), dtype=torch.float32, device=x.device)
        arrivals = arrivals_for(weight) if arrivals is None else arrivals
    if form == "fp8":  # as bytes: before sm_89 Triton knows no such numbers
        weight = weight.view(torch.int8)
    streamed_product[(triton.cdiv(outputs, plan.columns), plan.splits)](
        x.contiguous(), weight, out if scale is None else scale, out if residual is None else residual.contiguous(),
        out, partial, out if arrivals is None else arrivals, rows, outputs, inputs,
        ROWS=few, MORE=more, COLUMNS=plan.columns, DEPTH=plan.depth, SPLITS=plan.splits,
        FORM=form, SCALED=scale is not None, ADD=residual is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return out


def pieces(rows: int) -> tuple[int, int]:
    """Rows are padded to one piece of 8, 16 or 32, or to 32 and a second piece."""
    first, left = min(rows, 32), max(rows - 32, 0)
    return max(8, _power(first)), max(8, _power(left)) if left else 0


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _form(x: Tensor, weight: Tensor) -> str:
    """How weights are turned wide: by bits, in words of the GPU that the interpreter does not know, or by a cast."""
    forms = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
    return forms.get(weight.dtype, "cast") if has_words(x) else "cast"


def has_words(x: Tensor) -> bool:
    """Whether a kernel may turn weights wide for x in words of NVIDIA's GPUs."""
    return x.is_cuda and x.dtype == torch.bfloat16 and torch.version.hip is None
