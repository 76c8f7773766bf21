"""RMS norms, alone and after a residual sum: one kernel each on a GPU, where every launch costs, else plain torch.

The kernel rounds where torch rounds: the sum once, to the stream's own type, and the normed row once.
"""

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

LONGEST = 16384  # channels of a row that one program holds in registers
CHANNELS = 512  # that a warp takes


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight, row by row; x [T, d]."""
    return norm_fused(x, weight, eps) if _quick(x, weight) else norm_reference(x, weight, eps)


def add_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The stream x + branch, and its norm."""
    return add_norm_fused(x, branch, weight, eps) if _quick(x, weight) else add_norm_reference(x, branch, weight, eps)


def norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In the weight's precision where that is the higher one: torch has one kernel for it then, else many."""
    wide = x.float() if weight.dtype == torch.float32 else x
    return F.rms_norm(wide, weight.shape, weight, eps)


def add_norm_reference(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + branch
    return total, norm_reference(total, weight, eps)


def norm_fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The kernel; knows no gradients."""
    return _launch(x, None, weight, eps)[1]


def add_norm_fused(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The kernel; knows no gradients."""
    return _launch(x, branch.contiguous(), weight, eps)


def _quick(x: Tensor, weight: Tensor) -> bool:
    known = triton is not None and x.is_cuda and not torch.is_grad_enabled()
    return known and x.dim() == 2 and x.stride(1) == 1 and x.dtype == weight.dtype and len(weight) <= LONGEST


def _launch(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, channels = x.shape
    normed = x.new_empty((rows, channels))
    total = x if branch is None else torch.empty_like(normed)
    block = triton.next_power_of_2(channels)
    warps = max(1, min(16, block // CHANNELS))
    _add_norm[(rows,)](
        x, x if branch is None else branch, weight, total, normed, x.stride(0), eps,
        CHANNELS=channels, BLOCK=block, ADD=branch is not None, num_warps=warps, **early(x),
    )  # fmt: skip
    return total, normed


if triton is not None:

    @triton.jit(do_not_specialize=["eps"])  # type: ignore[untyped-decorator]
    def _add_norm(  # type: ignore[no-untyped-def]
        x, branch, weight, total, normed, stride, eps,
        CHANNELS: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, BLOCK)
        inside = i < CHANNELS
        gain = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
        if EARLY:
            wait_for_others()
        own = tl.load(x + row * stride + i, mask=inside, other=0.0)
        if ADD:
            added = tl.load(branch + row * CHANNELS + i, mask=inside, other=0.0)
            own = (own.to(tl.float32) + added.to(tl.float32)).to(own.dtype)
            tl.store(total + row * CHANNELS + i, own, mask=inside)
        wide = own.to(tl.float32)
        turn = tl.rsqrt(tl.sum(wide * wide, axis=0) / CHANNELS + eps)
        tl.store(normed + row * CHANNELS + i, (wide * turn * gain).to(own.dtype), mask=inside)
