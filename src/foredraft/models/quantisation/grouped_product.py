"""Products with a `GroupedMatrix`: few rows by the kernel, which reads codes once; many by the library, with plain
numbers of some outputs at a time. Without Triton everything goes the second way, in torch: that is the reference.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.grouped_gemv import CURVES
from ..layers.gemv_stream import FEW_ROWS, MOST_SPLITS, SLICE, WARPS, Plan, has_words, pieces
from .grouped_matrix import GroupedMatrix

try:
    import triton

    from ...kernels.grouped_gemv import grouped_product, widened
except ImportError:  # a CPU build of torch comes without it
    triton = None

WIDEN_COLUMNS = 32  # outputs of a program that writes plain numbers

# (rows up to, outputs, inputs, bits): on an H200, where quicker than the rule. The depth of a plan is the matrix's.
MEASURED: dict[tuple[int, int, int, int], Plan] = {
    (8, 57344, 8192, 4): Plan(128, 128, 4, 4, 4),  # 3622 GB/s
    (8, 8192, 28672, 4): Plan(128, 128, 8, 4, 4),  # 3390 GB/s
    (8, 28672, 4096, 4): Plan(64, 128, 2, 2, 4),  # 2707 GB/s
    (8, 4096, 14336, 4): Plan(64, 128, 8, 2, 4),  # 2422 GB/s
    (8, 10240, 8192, 4): Plan(128, 128, 8, 4, 4),  # 2581 GB/s
    (8, 8192, 8192, 4): Plan(64, 128, 4, 2, 4),  # 2542 GB/s
    (8, 6144, 4096, 4): Plan(64, 128, 8, 2, 4),  # 1621 GB/s
    (8, 4096, 4096, 4): Plan(128, 128, 8, 4, 4),  # 1276 GB/s
    (32, 57344, 8192, 4): Plan(128, 128, 2, 4, 3),  # 1985 GB/s
    (32, 8192, 28672, 4): Plan(64, 128, 4, 2, 4),  # 1848 GB/s
    (32, 28672, 4096, 4): Plan(64, 128, 1, 2, 4),  # 1592 GB/s
    (32, 4096, 14336, 4): Plan(64, 128, 8, 2, 4),  # 1439 GB/s
    (32, 10240, 8192, 4): Plan(128, 128, 4, 4, 3),  # 1397 GB/s
    (32, 8192, 8192, 4): Plan(64, 128, 4, 2, 4),  # 1540 GB/s
    (32, 6144, 4096, 4): Plan(64, 128, 4, 4, 4),  # 1018 GB/s
    (32, 4096, 4096, 4): Plan(64, 128, 4, 2, 4),  # 860 GB/s
}


def group_plan(rows: int, matrix: GroupedMatrix) -> Plan:
    """The measured plan, or one by rule: wide tiles, which read x less often, and work for all multiprocessors."""
    padded = sum(pieces(rows))
    measured = MEASURED.get((padded, matrix.outputs, matrix.inputs, matrix.bits))
    if measured is not None:
        return measured
    block = matrix.span * (2 if matrix.bits == 4 else 1)
    columns, warps, splits = (64, 4, 1) if matrix.outputs < 8192 else (128, 4, 1)
    while (
        splits < MOST_SPLITS
        and matrix.outputs * splits * warps < WARPS * columns
        and matrix.inputs >= 8 * splits * block
    ):
        splits *= 2
    return Plan(columns, block, splits, warps, 4 if matrix.span >= 64 else 6)


def multiply_groups(x: Tensor, matrix: GroupedMatrix, residual: Tensor | None, arrivals: Tensor) -> Tensor:
    """residual + x @ matrix.T."""
    if matrix.order is not None:
        x = x.index_select(-1, matrix.order)
    if triton is not None and x.is_cuda and x.dim() == 2 and len(x) <= FEW_ROWS:
        return multiply_groups_fused(x, matrix, residual, arrivals=arrivals)
    return multiply_groups_reference(x, matrix, residual)


def multiply_groups_reference(x: Tensor, matrix: GroupedMatrix, residual: Tensor | None) -> Tensor:
    """Inputs in stored order. Slice by slice, so that only a slice is ever wide."""
    parts = [F.linear(x, _plain(matrix, first, x.dtype)) for first in range(0, matrix.outputs, SLICE)]
    product = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return product if residual is None else residual + product


def multiply_groups_fused(
    x: Tensor, matrix: GroupedMatrix, residual: Tensor | None, plan: Plan | None = None, arrivals: Tensor | None = None
) -> Tensor:
    """The kernel, for at most FEW_ROWS rows; inputs in stored order."""
    rows, outputs = len(x), matrix.outputs
    plan = plan or group_plan(rows, matrix)
    few, more = pieces(rows)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    partial = out
    if plan.splits > 1:
        partial = torch.empty((plan.splits, rows, outputs), dtype=torch.float32, device=x.device)
        arrivals = counters(matrix) if arrivals is None else arrivals
    grouped_product[(triton.cdiv(outputs, plan.columns), plan.splits)](
        x.contiguous(), *_tensors(matrix), out if residual is None else residual.contiguous(), out, partial,
        out if arrivals is None else arrivals, rows, outputs, matrix.inputs,
        ROWS=few, MORE=more, COLUMNS=plan.columns, SPLITS=plan.splits, **_form(matrix, has_words(x)),
        ADD=residual is not None, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return out


def counters(matrix: GroupedMatrix) -> Tensor:
    """As `gemv_stream.arrivals_for`."""
    return torch.zeros(-(-matrix.outputs // 16), dtype=torch.int32, device=matrix.codes.device)


def _plain(matrix: GroupedMatrix, first: int, dtype: torch.dtype) -> Tensor:
    """Some outputs as plain numbers, inputs in stored order."""
    count = min(SLICE, matrix.outputs - first)
    if triton is None or not matrix.codes.is_cuda:
        part = matrix.some(first, first + count)
        return replace(part, order=None).dense(dtype)
    return widen(matrix, first, count, dtype)


def widen(matrix: GroupedMatrix, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """The same by the kernel."""
    out = torch.empty((count, matrix.inputs), dtype=dtype, device=matrix.codes.device)
    widened[(triton.cdiv(count, WIDEN_COLUMNS), len(matrix.codes))](
        *_tensors(matrix), out, first, first + count, matrix.outputs, matrix.inputs, COLUMNS=WIDEN_COLUMNS,
        **_form(matrix, False),
    )  # fmt: skip
    return out


def _tensors(m: GroupedMatrix) -> tuple[Tensor, ...]:
    """What both kernels read first; a tensor that is not there is any other one."""
    table = curve_table(m.kind, m.codes.device) if m.kind in CURVES else m.scale
    return m.codes, table, m.scale, *(m.scale if part is None else part for part in (m.outer, m.least, m.outer_least))


def _form(m: GroupedMatrix, words: bool) -> dict[str, Any]:
    eight = (m.kind if m.kind == "fp8" else "int8") if words else "fp8 cast" if m.kind == "fp8" else "cast"
    form = eight if m.bits == 8 else "words" if words else "cast"
    return {
        "SPAN": m.span, "GROUP": m.group, "OUTER": m.outer_group, "BITS": m.bits, "FORM": form,
        "CURVE": m.kind if m.kind in CURVES else "", "CENTER": m.center, "LEAST": m.least_is,
    }  # fmt: skip


@cache
def curve_table(kind: str, device: torch.device) -> Tensor:
    return torch.tensor(CURVES[kind], device=device)
