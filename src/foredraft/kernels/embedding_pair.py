"""Pairs of a token's embedding and a feature, the input of a feature head: put together, and normed half by half.

One kernel each on a GPU, where every launch costs, else plain torch (the references).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .early_launch import early
from .norm import CHANNELS, LONGEST, norm_reference

try:
    import triton
    import triton.language as tl

    from .early_launch import wait_for_others
except ImportError:  # a CPU build of torch comes without it
    triton = None


def pairs(token: Tensor, embedding: Tensor, features: Tensor, above: Tensor | None = None) -> Tensor:
    """[B * w, 2 d]: the rows of `embedding` [V, d] that tokens [B, w] name, and features out of [B, n, d] beside them.

    above [B, w] says which of its sequence's features each token has; None = they are in the tokens' order.
    """
    quick = _quick(features) and features.stride(2) == 1 and embedding.stride(1) == 1
    return (pairs_fused if quick else pairs_reference)(token, embedding, features, above)


def norm_halves(x: Tensor, first: Tensor, second: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [.., 2 d] with its halves normed apart, and its second half as it was."""
    quick = _quick(x) and x.dim() == 2 and x.stride(1) == 1 and x.dtype == first.dtype == second.dtype
    return (norm_halves_fused if quick else norm_halves_reference)(x, first, second, eps)


def _quick(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and not torch.is_grad_enabled() and x.shape[-1] <= LONGEST


def pairs_reference(token: Tensor, embedding: Tensor, features: Tensor, above: Tensor | None = None) -> Tensor:
    if above is not None:
        features = features.gather(1, above[:, :, None].expand(-1, -1, features.shape[2]))
    embeds = F.embedding(token.flatten(), embedding)
    return torch.cat((embeds, features.flatten(0, 1).to(embeds.dtype)), dim=-1)


def norm_halves_reference(x: Tensor, first: Tensor, second: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    former, latter = x.chunk(2, dim=-1)
    return torch.cat((norm_reference(former, first, eps), norm_reference(latter, second, eps)), dim=-1), latter


def pairs_fused(token: Tensor, embedding: Tensor, features: Tensor, above: Tensor | None = None) -> Tensor:
    """The kernel; knows no gradients."""
    (batch, width), channels = token.shape, embedding.shape[1]
    out = embedding.new_empty((batch * width, 2 * channels))
    token = token.contiguous()
    _pair[(batch * width,)](
        token, embedding, features, token if above is None else above.contiguous(), out, width,
        embedding.stride(0), features.stride(0), features.stride(1), CHOSEN=above is not None, **_sizes(channels),
        **early(out),
    )  # fmt: skip
    return out


def norm_halves_fused(x: Tensor, first: Tensor, second: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The kernel; knows no gradients."""
    rows, channels = len(x), len(first)
    normed, latter = x.new_empty((rows, 2 * channels)), x.new_empty((rows, channels))
    _norm_half[(rows, 2)](x, first, second, normed, latter, x.stride(0), eps, **_sizes(channels), **early(x))
    return normed, latter


def _sizes(channels: int) -> dict[str, int]:
    block = triton.next_power_of_2(channels)
    return {"CHANNELS": channels, "BLOCK": block, "num_warps": max(1, min(16, block // CHANNELS))}


if triton is not None:

    @triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
    def _pair(  # type: ignore[no-untyped-def]
        token, embedding, features, above, out, width, word_stride, sequence_stride, feature_stride,
        CHOSEN: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, BLOCK)
        inside = i < CHANNELS
        if EARLY:
            wait_for_others()
        place = row % width
        if CHOSEN:
            place = tl.load(above + row)
        here = features + row // width * sequence_stride + place * feature_stride
        feature = tl.load(here + i, mask=inside, other=0.0)
        word = tl.load(embedding + tl.load(token + row) * word_stride + i, mask=inside, other=0.0)
        tl.store(out + row * 2 * CHANNELS + i, word, mask=inside)
        tl.store(out + row * 2 * CHANNELS + CHANNELS + i, feature.to(out.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["eps"])  # type: ignore[untyped-decorator]
    def _norm_half(  # type: ignore[no-untyped-def]
        x, first, second, normed, latter, stride, eps,
        CHANNELS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        row, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
        i = tl.arange(0, BLOCK)
        inside = i < CHANNELS
        gain = tl.load(tl.where(half == 0, first, second) + i, mask=inside, other=0.0).to(tl.float32)
        if EARLY:
            wait_for_others()
        own = tl.load(x + row * stride + half * CHANNELS + i, mask=inside, other=0.0)
        wide = own.to(tl.float32)
        turn = tl.rsqrt(tl.sum(wide * wide, axis=0) / CHANNELS + eps)
        tl.store(normed + (row * 2 + half) * CHANNELS + i, (wide * turn * gain).to(own.dtype), mask=inside)
        if half == 1:
            tl.store(latter + row * CHANNELS + i, own, mask=inside)
