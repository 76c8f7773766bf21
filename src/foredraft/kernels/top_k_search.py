"""Triton kernels that find the largest entries of rows; `largest` and `Step.top` hold the references.

A row is searched in chunks, whose best meet in a second, small kernel. An entry and its place are one whole number, the
key: the value's bits in an order that integers have too, and below them the place, the first one highest. So the
largest key is the first of the largest entries, and one comparison finds both.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None

MOST = 16  # entries that are looked for
IMPOSSIBLE = -1e4  # log-probability in place of zero


def can_search(rows: Tensor, k: int) -> bool:
    """Whether the kernels take these rows."""
    return triton is not None and rows.is_cuda and k <= MOST and rows.stride(1) == 1


def top_k_fused(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `core.distributions.top_k.find_top_k`: of equal entries the first one first; NaN comes out as infinite."""
    return _search(rows, k, None, False)


def top_tokens_fused(logits: Tensor, k: int, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """The top k of each row: log-probabilities [M, k] float32 and places, or the ids [V] at those places."""
    return _search(logits, k, ids, True)


def _search(rows: Tensor, k: int, ids: Tensor | None, distribution: bool) -> tuple[Tensor, Tensor]:
    keys, peak, mass = search_chunks(rows, k, distribution)
    (count, chunks), device = peak.shape, rows.device
    values = torch.empty((count, k), dtype=torch.float32 if distribution else rows.dtype, device=device)
    places = torch.empty((count, k), dtype=torch.int64, device=device)
    _merge_chunks[(count,)](
        keys, peak, mass, places if ids is None else ids, values, places, chunks, IMPOSSIBLE,
        K=k, CELLS=triton.next_power_of_2(chunks * k), CHUNKS=triton.next_power_of_2(chunks), DISTRIBUTION=distribution,
        NAMED=ids is not None, num_warps=1 if chunks * k <= 256 else 4,
    )  # fmt: skip
    return values, places


def search_chunks(rows: Tensor, k: int, distribution: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest keys of every chunk [M, chunks, k]; of a distribution its largest logit and its mass, too."""
    (count, length), device = rows.shape, rows.device
    size = 4096 if k == 1 else 1024  # every further entry is one more look at the whole chunk
    chunks = triton.cdiv(length, size)
    keys = torch.empty((count, chunks, k), dtype=torch.int64, device=device)
    peak, mass = (torch.empty((count, chunks), dtype=torch.float32, device=device) for _ in range(2))
    _search_chunk[(count, chunks)](
        rows, keys, peak, mass, length, rows.stride(0), chunks, K=k, SIZE=size, DISTRIBUTION=distribution
    )
    return keys, peak, mass


if triton is not None:
    NOTHING = tl.constexpr(-(2**63))  # below every key
    PLACES = tl.constexpr(2**31 - 1)

    @triton.jit
    def key_of(value, place):  # type: ignore[no-untyped-def]
        """Float32 values at these places as keys."""
        value = tl.where(value != value, float("inf"), tl.where(value == 0.0, 0.0, value))  # there is one zero
        bits = value.to(tl.int32, bitcast=True)
        rising = bits ^ ((bits >> 31) & PLACES)
        return (rising.to(tl.int64) << 32) | (place ^ PLACES).to(tl.int64)  # the first place is the highest number

    @triton.jit
    def value_of(key):  # type: ignore[no-untyped-def]
        rising = (key >> 32).to(tl.int32)
        return (rising ^ ((rising >> 31) & PLACES)).to(tl.float32, bitcast=True)

    @triton.jit
    def place_of(key):  # type: ignore[no-untyped-def]
        return (key & PLACES) ^ PLACES

    @triton.jit  # type: ignore[untyped-decorator]
    def log_total(peak, mass, row, chunks, CHUNKS: tl.constexpr):  # type: ignore[no-untyped-def]
        """The log of what a row's exponentials sum up to."""
        chunk = tl.arange(0, CHUNKS)
        tops = tl.load(peak + row * chunks + chunk, mask=chunk < chunks, other=-float("inf"))
        masses = tl.load(mass + row * chunks + chunk, mask=chunk < chunks, other=0.0)
        top = tl.max(tops, axis=0)
        top = tl.where(top == -float("inf"), 0.0, top)
        return top + tl.log(tl.sum(masses * tl.exp(tops - top), axis=0))

    @triton.jit(do_not_specialize=["length", "chunks"])  # type: ignore[untyped-decorator]
    def _search_chunk(  # type: ignore[no-untyped-def]
        rows, keys, peak, mass, length, stride, chunks, K: tl.constexpr, SIZE: tl.constexpr, DISTRIBUTION: tl.constexpr
    ):
        row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
        place = chunk * SIZE + tl.arange(0, SIZE)
        real = place < length
        x = tl.load(rows + row * stride + place, mask=real, other=-float("inf")).to(tl.float32)
        cell = row * chunks + chunk
        if DISTRIBUTION:
            top = tl.max(x, axis=0)
            tl.store(peak + cell, top)
            tl.store(mass + cell, tl.sum(tl.exp(x - tl.where(top == -float("inf"), 0.0, top)), axis=0))
        key = tl.where(real, key_of(x, place), NOTHING)
        for i in tl.static_range(K):
            best = tl.max(key, axis=0)
            tl.store(keys + cell * K + i, best)
            key = tl.where(key == best, NOTHING, key)

    @triton.jit(do_not_specialize=["chunks"])  # type: ignore[untyped-decorator]
    def _merge_chunks(  # type: ignore[no-untyped-def]
        keys, peak, mass, ids, values, places, chunks, impossible,
        K: tl.constexpr, CELLS: tl.constexpr, CHUNKS: tl.constexpr, DISTRIBUTION: tl.constexpr, NAMED: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        cell = tl.arange(0, CELLS)
        key = tl.load(keys + row * chunks * K + cell, mask=cell < chunks * K, other=NOTHING)
        if DISTRIBUTION:
            total = log_total(peak, mass, row, chunks, CHUNKS)
        for i in tl.static_range(K):
            best = tl.max(key, axis=0)
            key = tl.where(key == best, NOTHING, key)
            value, place = value_of(best), place_of(best)
            if DISTRIBUTION:  # a broken drafter guesses too
                value = value - total
                value = tl.where(value > impossible, value, impossible)
            if NAMED:
                place = tl.load(ids + place)
            tl.store(values + row * K + i, value.to(values.dtype.element_ty))
            tl.store(places + row * K + i, place)
