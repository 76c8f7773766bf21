"""The inner activation of the MLP: one kernel on a GPU, where every launch costs, else plain torch (the reference)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .early_launch import early

try:
    import triton
    import triton.language as tl

    from .early_launch import wait_for_others
except ImportError:  # a CPU build of torch comes without it
    triton = None

BLOCK = 1024


def gated(gate_up: Tensor) -> Tensor:
    """[T, 2 I] -> silu(gate) * up, [T, I]."""
    if triton is None or not gate_up.is_cuda or torch.is_grad_enabled():
        return gated_reference(gate_up)
    return gated_fused(gate_up)


def gated_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_fused(gate_up: Tensor) -> Tensor:
    """The kernel; knows no gradients."""
    inner = gate_up.shape[-1] // 2
    out = gate_up.new_empty((*gate_up.shape[:-1], inner))
    _gated[(gate_up.numel() // (2 * inner), triton.cdiv(inner, BLOCK))](gate_up, out, inner, BLOCK=BLOCK, **early(out))
    return out


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _gated(gate_up, out, inner, BLOCK: tl.constexpr, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < inner
        if EARLY:
            wait_for_others()
        gate = tl.load(gate_up + row * 2 * inner + i, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + row * 2 * inner + inner + i, mask=inside, other=0.0).to(tl.float32)
        soft = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)  # rounded where torch rounds
        tl.store(out + row * inner + i, (soft * up).to(out.dtype.element_ty), mask=inside)
