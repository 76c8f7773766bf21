"""Products of a narrow model for several rows on a GPU, each fused with what surrounds it, on tensor cores.

The weights are the left operand, out.T = weight @ x.T. A program takes a small tile of outputs and rows with all of
their inputs: it asks for everything at once, so that memory is waited for once. Its warps share the inputs and add up
what each has found, so that many small programs have work and no sum goes from one to another. The norm is worked out
from the rows at hand: (x / rms(x) * gain) W = (x * gain) W / rms(x), where x * gain is rounded as the reference rounds
the normed row.

A row's result depends on its own numbers and on the plan alone, never on its neighbours or its place among them. Plans
go by padded rows (BUCKETS): within a bucket a row's bits stay the same however many rows there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .early_launch import early

try:
    import triton
    import triton.language as tl

    from .early_launch import wait_for_others
except ImportError:  # a CPU build of torch comes without it
    triton = None

MOST = 64  # rows that are worth it
MOST_INPUTS = 2048  # that a program can hold
BUCKETS = (8, 16, 32, 48, 64)
LEAST_SHARE, SHARE = 16, 256  # inputs of a warp: what a tensor core takes, and what a warp reads of a line at a time
AT_ONCE = 264  # programs of the smallest size that a large GPU runs side by side


class Plan(NamedTuple):
    """How a product is cut up."""

    lines: int  # of the matrix that a program takes, at least 16; where there are gates, half of them are ups
    rows: int  # rows that are multiplied at a time, at least 8
    warps: int  # they share the inputs
    stages: int  # 0: a program has these rows alone, else it goes through all of them and reads ahead so many, less one


# (padded rows, lines of the matrix, inputs): on an H200 in bf16, where quicker than the rule.
MEASURED: dict[tuple[int, int, int], Plan] = {
    (8, 960, 576): Plan(16, 8, 8, 0),
    (8, 576, 576): Plan(16, 8, 4, 0),
    (8, 3072, 576): Plan(32, 8, 4, 0),
    (8, 576, 1536): Plan(16, 8, 8, 0),
    (16, 960, 576): Plan(16, 8, 4, 0),
    (16, 576, 576): Plan(16, 8, 4, 0),
    (16, 3072, 576): Plan(32, 16, 8, 0),
    (16, 576, 1536): Plan(16, 16, 8, 0),
    (32, 960, 576): Plan(32, 16, 8, 0),
    (32, 576, 576): Plan(16, 16, 8, 0),
    (32, 3072, 576): Plan(32, 16, 8, 0),
    (32, 576, 1536): Plan(16, 16, 8, 0),
    (48, 960, 576): Plan(32, 16, 8, 0),
    (48, 576, 576): Plan(16, 16, 4, 0),
    (48, 3072, 576): Plan(32, 16, 8, 0),
    (48, 576, 1536): Plan(16, 16, 8, 0),
    (64, 960, 576): Plan(16, 16, 8, 0),
    (64, 576, 576): Plan(32, 16, 8, 0),
    (64, 3072, 576): Plan(32, 16, 8, 0),
    (64, 576, 1536): Plan(32, 16, 16, 0),
}


def plan_for(rows: int, lines: int, inputs: int, size: int) -> Plan:
    """The measured plan, or one by rule: small tiles, unless they were too many to run at once."""
    padded, depth = next(bucket for bucket in BUCKETS if rows <= bucket), _depth(inputs)
    if size > 2:
        return Plan(16, 8, min(16, depth // LEAST_SHARE), 0)
    measured = MEASURED.get((padded, lines, inputs))
    if measured is not None:
        return measured
    warps = max(1, depth // SHARE)
    if lines * padded > AT_ONCE * 16 * 16:
        return Plan(32, 16, min(2 * warps, depth // LEAST_SHARE), 2)
    return Plan(16, min(padded, 16), warps, 0)


def rows_product(
    x: Tensor,
    weight: Tensor,
    gain: Tensor | None,
    eps: float,
    residual: Tensor | None,
    gates: bool,
    plan: Plan | None = None,
) -> Tensor:
    """x @ weight.T: of the normed rows if there is a gain, after it the gate or the residual sum as asked for."""
    (rows, inputs), halves = x.shape, 2 if gates else 1
    outputs = len(weight) // halves
    plan = plan or plan_for(rows, len(weight), inputs, x.element_size())
    columns = plan.lines // halves
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    _rows_product[(triton.cdiv(outputs, columns), 1 if plan.stages else triton.cdiv(rows, plan.rows))](
        x.contiguous(), weight, out if gain is None else gain, out if residual is None else residual, out, eps, rows,
        INPUTS=inputs, OUTPUTS=outputs, COLUMNS=columns, HALVES=halves, ROWS=plan.rows, DEPTH=_depth(inputs),
        PARTS=plan.warps, STAGES=plan.stages, NORM=gain is not None, ADD=residual is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=plan.warps, **early(x),
    )  # fmt: skip
    return out


def _depth(inputs: int) -> int:
    return max(LEAST_SHARE, 1 << (inputs - 1).bit_length())


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def gate_of(gate, up, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
        """silu(gate) * up, rounded where torch rounds."""
        gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
        return (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up

    @triton.jit  # type: ignore[untyped-decorator]
    def _added(parts, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
        """[L, R, PARTS] -> their sum [L, R], pair by pair in threads: `tl.sum` goes through warps number by number."""
        lines: tl.constexpr = parts.shape[0]
        rows: tl.constexpr = parts.shape[1]
        for level in tl.static_range(1, 6):  # up to 32 parts
            if PARTS >> level > 0:
                one, other = tl.split(tl.reshape(parts, (lines, rows, PARTS >> level, 2)))
                parts = one + other
        return tl.reshape(parts, (lines, rows))

    @triton.jit  # type: ignore[untyped-decorator]
    def _meet(read, given, PARTS: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
        """read [L, K] @ given [R, K].T: each warp multiplies one part of K, then the parts are added."""
        share: tl.constexpr = read.shape[1] // PARTS
        left = tl.permute(tl.reshape(read, (read.shape[0], PARTS, share)), (1, 0, 2))
        right = tl.permute(tl.reshape(given, (given.shape[0], PARTS, share)), (1, 2, 0))
        return _added(tl.permute(tl.dot(left, right, input_precision=PRECISION), (1, 2, 0)), PARTS)

    @triton.jit  # type: ignore[untyped-decorator]
    def _some_rows(  # type: ignore[no-untyped-def]
        read, scale, first, x, residual, out, eps, rows,
        INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, HALVES: tl.constexpr, ROWS: tl.constexpr,
        PARTS: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """The outputs of the lines in hand for rows from `first` on."""
        dtype: tl.constexpr = out.dtype.element_ty
        k = tl.arange(0, read.shape[1])
        row = first + tl.arange(0, ROWS)
        asked = (row < rows)[:, None] & (k < INPUTS)[None, :]
        given = tl.load(x + row[:, None] * INPUTS + k[None, :], mask=asked, other=0.0)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        target = column[:, None] + row[None, :] * OUTPUTS
        shown = (column < OUTPUTS)[:, None] & (row < rows)[None, :]
        if ADD:
            before = tl.load(residual + target, mask=shown, other=0.0).to(tl.float32)
        if NORM:
            wide = given.to(tl.float32)
            turn = tl.rsqrt(tl.sum(wide * wide, axis=1) / INPUTS + eps)
            answer = _meet(read, (wide * scale[None, :]).to(dtype), PARTS, PRECISION) * turn[None, :]
        else:
            answer = _meet(read, given, PARTS, PRECISION)
        if HALVES == 2:
            gate, up = tl.split(tl.permute(tl.reshape(answer, (2, COLUMNS, ROWS)), (1, 2, 0)))
            answer = gate_of(gate, up, dtype)
        if ADD:
            answer = before + answer.to(dtype).to(tl.float32)
        tl.store(out + target, answer.to(dtype), mask=shown)

    @triton.jit(do_not_specialize=["eps", "rows"])  # type: ignore[untyped-decorator]
    def _rows_product(  # type: ignore[no-untyped-def]
        x, weight, gain, residual, out, eps, rows,
        INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, HALVES: tl.constexpr, ROWS: tl.constexpr,
        DEPTH: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr,
        PRECISION: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """Some outputs of some or all rows. HALVES: 2 where gates and ups follow one another in the matrix."""
        if NORM:  # each program sends for a word of the gain, so that it is near when the weights have come
            tl.load(gain + tl.program_id(0) * 16 % INPUTS, volatile=True)
        k = tl.arange(0, DEPTH)
        line = tl.arange(0, HALVES * COLUMNS)  # gates, then ups
        unit = tl.program_id(0) * COLUMNS + line % COLUMNS
        there = weight + (unit + line // COLUMNS * OUTPUTS)[:, None] * INPUTS + k[None, :]
        read = tl.load(there, mask=(unit < OUTPUTS)[:, None] & (k < INPUTS)[None, :], other=0.0)
        scale = 1.0
        if NORM:
            scale = tl.load(gain + k, mask=k < INPUTS, other=0.0).to(tl.float32)
        if EARLY:
            wait_for_others()
        if STAGES > 0:
            for first in tl.range(0, rows, ROWS, num_stages=STAGES):
                _some_rows(
                    read, scale, first, x, residual, out, eps, rows,
                    INPUTS, OUTPUTS, COLUMNS, HALVES, ROWS, PARTS, NORM, ADD, PRECISION,
                )  # fmt: skip
        else:
            first = tl.program_id(1) * ROWS
            _some_rows(
                read, scale, first, x, residual, out, eps, rows,
                INPUTS, OUTPUTS, COLUMNS, HALVES, ROWS, PARTS, NORM, ADD, PRECISION,
            )  # fmt: skip
