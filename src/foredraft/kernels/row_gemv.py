"""The kernel of `models.layers.gemv_narrow` for a single row: norm, product, and gate or residual in one launch."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    from .early_launch import wait_for_others
    from .gemv_narrow_rows import gate_of
except ImportError:  # a CPU build of torch comes without it
    triton = None


if triton is not None:

    @triton.jit(do_not_specialize=["eps"])  # type: ignore[untyped-decorator]
    def row_product(  # type: ignore[no-untyped-def]
        x, weight, gain, residual, out, eps,
        INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
        NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """Some outputs of a row: everything is asked for at once, so memory is waited for once."""
        row = tl.program_id(0)
        x, residual, out = x + row * INPUTS, residual + row * OUTPUTS, out + row * OUTPUTS
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        k = tl.arange(0, DEPTH)
        shown, inside = column < OUTPUTS, k < INPUTS
        asked = shown[:, None] & inside[None, :]
        there = weight + column[:, None] * INPUTS + k[None, :]
        read = tl.load(there, mask=asked, other=0.0)
        if GATE:
            more = tl.load(there + OUTPUTS * INPUTS, mask=asked, other=0.0)
        if NORM:
            scale = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
        if EARLY:
            wait_for_others()
        given = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        turn = 1.0
        if NORM:
            own = tl.broadcast_to(given[None, :], (COLUMNS, DEPTH))  # once more for each output, so as to wait for none
            turn = tl.rsqrt(tl.sum(own * own, axis=1) / INPUTS + eps)
            given = given * scale
        answer = tl.sum(read.to(tl.float32) * given[None, :], axis=1) * turn
        dtype = out.dtype.element_ty
        if GATE:
            answer = gate_of(answer, tl.sum(more.to(tl.float32) * given[None, :], axis=1) * turn, dtype)
        if ADD:
            before = tl.load(residual + column, mask=shown, other=0.0).to(tl.float32)
            answer = before + answer.to(dtype).to(tl.float32)
        tl.store(out + column, answer.to(dtype), mask=shown)
