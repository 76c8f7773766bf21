"""A Triton kernel that finds where to cut rows: the largest entry v so that the entries from v on weigh enough.

With weights of 1 that is the k-th largest entry (top-k), with probabilities the border of a nucleus (top-p), without
sorting the row. Entries are compared as integers in the same order; each launch weighs 16 candidate borders of every
row and leaves a sixteenth of the interval, so eight launches find the one of 2^32. Sums run in a fixed order: the same
row gives the same border in every batch. Equal entries stay or go together.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    from .top_k_search import PLACES, value_of
except ImportError:  # a CPU build of torch comes without it
    triton = None

LAUNCHES = 8


def can_cut(rows: Tensor) -> bool:
    """Whether the kernel takes these rows."""
    return triton is not None and rows.is_cuda and rows.dtype == torch.float32 and rows.stride(1) == 1


def find_cut(rows: Tensor, wanted: Tensor, log_mass: Tensor | None = None) -> Tensor:
    """[M, 1] the border of each row of [M, V], by weights exp(x - log_mass) or 1 (all stay if all weigh less).

    wanted and log_mass: [M].
    """
    return find_cut_fused(rows, wanted, log_mass) if can_cut(rows) else find_cut_reference(rows, wanted, log_mass)


def find_cut_reference(rows: Tensor, wanted: Tensor, log_mass: Tensor | None = None) -> Tensor:
    falling = rows.sort(dim=1, descending=True).values
    weight = torch.ones_like(falling) if log_mass is None else torch.exp(falling - log_mass[:, None])
    short = (weight.cumsum(dim=1) < wanted[:, None]).sum(dim=1, keepdim=True)
    return falling.gather(1, short.clamp(max=rows.shape[1] - 1))


def find_cut_fused(rows: Tensor, wanted: Tensor, log_mass: Tensor | None = None) -> Tensor:
    (count, length), device, size = rows.shape, rows.device, 1024
    chunks = triton.cdiv(length, size)
    sums = torch.empty((LAUNCHES, count, chunks, 16), dtype=torch.float32, device=device)
    bounds = torch.empty((LAUNCHES, count, 2), dtype=torch.int64, device=device)
    cut = torch.empty((count, 1), dtype=torch.float32, device=device)
    wanted, shift = wanted.to(torch.float32).contiguous(), wanted if log_mass is None else log_mass.contiguous()
    cells = triton.next_power_of_2(chunks)
    for launch in range(LAUNCHES):
        _weigh[(count, chunks)](
            rows, shift, wanted, sums, bounds, length, rows.stride(0), count, chunks, launch,
            FIRST=launch == 0, COUNT=log_mass is None, SIZE=size, CHUNKS=cells,
        )  # fmt: skip
    _settle[(count,)](wanted, sums, bounds, cut, count, chunks, LAUNCHES - 1, CHUNKS=cells)
    return cut


if triton is not None:
    LOWEST = tl.constexpr(-2139095041)  # minus infinity as an integer

    @triton.jit  # type: ignore[untyped-decorator]
    def _narrowed(  # type: ignore[no-untyped-def]
        wanted, sums, bounds, row, count, chunks, launch, CHUNKS: tl.constexpr
    ):
        """The interval [low, high) after a launch: the last border that weighs enough, and the first that does not."""
        low = tl.load(bounds + (launch * count + row) * 2)
        high = tl.load(bounds + (launch * count + row) * 2 + 1)
        way, chunk = tl.arange(0, 16), tl.arange(0, CHUNKS)
        cell = ((launch * count + row) * chunks + chunk[:, None]) * 16 + way[None, :]
        found = tl.sum(tl.load(sums + cell, mask=(chunk < chunks)[:, None], other=0.0), axis=0)
        enough = (found >= tl.load(wanted + row)) | (way == 0)
        best = tl.max(tl.where(enough, way, 0), axis=0)
        width = high - low
        after = tl.where(best == 15, high, low + width * (best + 1) // 16)
        return low + width * best // 16, after

    @triton.jit(do_not_specialize=["length", "count", "chunks", "launch"])  # type: ignore[untyped-decorator]
    def _weigh(  # type: ignore[no-untyped-def]
        rows, shift, wanted, sums, bounds, length, stride, count, chunks, launch,
        FIRST: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr, CHUNKS: tl.constexpr,
    ):  # fmt: skip
        row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
        low, high = tl.full((), LOWEST, tl.int64), tl.full((), 2**31, tl.int64)
        if not FIRST:
            low, high = _narrowed(wanted, sums, bounds, row, count, chunks, launch - 1, CHUNKS)
        if chunk == 0:
            tl.store(bounds + (launch * count + row) * 2, low)
            tl.store(bounds + (launch * count + row) * 2 + 1, high)
        place, way = chunk * SIZE + tl.arange(0, SIZE), tl.arange(0, 16)
        real = place < length
        x = tl.load(rows + row * stride + place, mask=real, other=-float("inf"))
        x = tl.where(x == 0.0, 0.0, x)  # there is one zero
        bits = x.to(tl.int32, bitcast=True)
        rising = (bits ^ ((bits >> 31) & PLACES)).to(tl.int64)
        weight = tl.where(real, 1.0, 0.0)
        if not COUNT:
            weight = tl.where(real, tl.exp(x - tl.load(shift + row)), 0.0)
        border = low + (high - low) * way // 16
        above = rising[None, :] >= border[:, None]
        found = tl.sum(tl.where(above, weight[None, :], 0.0), axis=1)
        tl.store(sums + ((launch * count + row) * chunks + chunk) * 16 + way, found)

    @triton.jit(do_not_specialize=["count", "chunks", "launch"])  # type: ignore[untyped-decorator]
    def _settle(wanted, sums, bounds, cut, count, chunks, launch, CHUNKS: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        low, _ = _narrowed(wanted, sums, bounds, row, count, chunks, launch, CHUNKS)
        tl.store(cut + row, value_of(low << 32))
