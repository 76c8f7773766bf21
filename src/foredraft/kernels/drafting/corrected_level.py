"""Kernels of a level of a block drafter: what its correction reads, and its top words once copies had their shares.

The references are `ForerunnerHead.below`, `Pointer.follow` and `Pointer.mixed` with a search after it. Copies change
the probabilities of a few words, so the best of all are among the best of the rest and those few.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..early_launch import early
from ..top_k_search import IMPOSSIBLE, search_chunks

try:
    import triton
    import triton.language as tl

    from ..early_launch import wait_for_others
    from ..top_k_search import NOTHING, key_of, log_total, place_of, value_of
except ImportError:  # a CPU build of torch comes without it
    triton = None


class Parents(NamedTuple):
    """The nodes of a level: their tokens, and the columns of their parents in the level above, [B, w] int64 each."""

    token: Tensor
    above: Tensor


def enter_level(
    states: Tensor,
    parents: Parents,
    row: Tensor,
    share: Tensor,
    embedding: Tensor,
    gain: Tensor,
    eps: float,
    unit: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the correction of nodes reads, [N, 2 d]: the normed states above them, their tokens' embeddings / unit.

    states [B, w above, d]; row [B, d] and share [B, s] of the level, also repeated for each node: [N, d], [N, s].
    """
    (batch, wide, d), width, shared = states.shape, parents.token.shape[1], share.shape[1]
    count = batch * width
    read, rows, shares = (states.new_empty((count, n)) for n in (2 * d, d, shared))
    _enter[(count,)](
        states, parents.token, parents.above, row, share, embedding, gain, read, rows, shares,
        width, wide, row.stride(0), share.stride(0), eps, unit,
        CHANNELS=d, SHARED=shared, BLOCK=triton.next_power_of_2(d), SHARES=triton.next_power_of_2(shared),
        **early(read),
    )  # fmt: skip
    return read, rows, shares


class Copying(NamedTuple):
    """What does not change from level to level."""

    token: Tensor  # [B, M, k] that follow each pointer, -1 = none
    gain: Tensor  # [d] of the norm before the words
    gate: Tensor  # [d]
    gates: Tensor  # [k] what the gate adds on a level
    followed: Tensor  # [k, 2] what a pointer gains on a level by a token that it has not foreseen, or has
    ids: Tensor  # of the words
    word_of: Tensor  # [ids] words of target ids, -1 = none
    eps: float
    nowhere: float


def pointed_words(
    logits: Tensor, states: Tensor, score: Tensor, parents: Parents | None, copying: Copying, level: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The top k words after nodes, [N, k] log-probabilities and target ids, and the scores of their pointers, [N, M].

    logits [N, V] of the words alone; states [N, d]; score [B, w above, M], parents None = after the root.
    """
    keys, peak, mass = search_chunks(logits, k, True)
    (count, chunks), (batch, wide, pointers) = peak.shape, score.shape
    values = torch.empty((count, k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((count, k), dtype=torch.int64, device=logits.device)
    scores = torch.empty((count, pointers), dtype=torch.float32, device=logits.device)
    root, d = parents is None, states.shape[1]
    token, above = (copying.token, copying.token) if parents is None else parents
    _merge[(count,)](
        keys, peak, mass, logits, states, copying.gain, copying.gate, copying.gates, copying.followed,
        score, copying.token, token, above, copying.ids, copying.word_of, values, ids, scores,
        count // batch, wide, chunks, logits.stride(0), copying.token.shape[2], level, copying.eps, copying.nowhere,
        IMPOSSIBLE, CHANNELS=d, BLOCK=triton.next_power_of_2(d), POINTERS=pointers, K=k,
        CELLS=triton.next_power_of_2(chunks * k), CHUNKS=triton.next_power_of_2(chunks), ROOT=root, **early(logits),
    )  # fmt: skip
    return values, ids, scores


if triton is not None:

    @triton.jit(do_not_specialize=["width", "wide", "eps", "unit"])  # type: ignore[untyped-decorator]
    def _enter(  # type: ignore[no-untyped-def]
        states, token, above, row, share, embedding, gain, read, rows, shares,
        width, wide, row_stride, share_stride, eps, unit,
        CHANNELS: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(0).to(tl.int64)
        b, i, j = n // width, tl.arange(0, BLOCK), tl.arange(0, SHARES)
        inside = i < CHANNELS
        dtype = read.dtype.element_ty
        scale = tl.load(gain + i, mask=inside, other=0.0).to(tl.float32)
        if EARLY:
            wait_for_others()
        own = states + (b * wide + tl.load(above + n)) * CHANNELS
        x = tl.load(own + i, mask=inside, other=0.0).to(tl.float32)
        normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / CHANNELS + eps) * scale
        tl.store(read + n * 2 * CHANNELS + i, normed.to(dtype), mask=inside)
        name = tl.load(embedding + tl.load(token + n) * CHANNELS + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(read + n * 2 * CHANNELS + CHANNELS + i, (name / unit).to(dtype), mask=inside)
        tl.store(rows + n * CHANNELS + i, tl.load(row + b * row_stride + i, mask=inside, other=0.0), mask=inside)
        given = tl.load(share + b * share_stride + j, mask=j < SHARED, other=0.0)
        tl.store(shares + n * SHARED + j, given, mask=j < SHARED)

    @triton.jit
    def log_sum(x):  # type: ignore[no-untyped-def]
        """log sum exp of the rows of x."""
        top = tl.max(x, axis=1)
        return top + tl.log(tl.sum(tl.exp(x - top[:, None]), axis=1))

    @triton.jit  # type: ignore[untyped-decorator]
    def gate_after(x, weight, gating, eps, dtype, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
        """What a state says of copying: its norm, rounded as the reference rounds it, times the gate."""
        turn = tl.rsqrt(tl.sum(x * x, axis=0) / CHANNELS + eps)
        return tl.sum((x * turn * weight).to(dtype).to(tl.float32) * gating, axis=0)

    @triton.jit  # type: ignore[untyped-decorator]
    def shares_of(column, share, nowhere, POINTERS: tl.constexpr):  # type: ignore[no-untyped-def]
        """The log of what all that name the same word have together, and which is the first of those; and the log of
        the mass of all words and of all shares together."""
        m = tl.arange(0, POINTERS)
        same = column[:, None] == column[None, :]
        copied = log_sum(tl.where(same, share[None, :], nowhere))
        first = (column >= 0) & (tl.sum((same & (m[None, :] < m[:, None])).to(tl.int32), axis=1) == 0)
        most = tl.maximum(tl.max(tl.where(first, copied, nowhere), axis=0), 0.0)
        whole = most + tl.log(tl.exp(-most) + tl.sum(tl.where(first, tl.exp(copied - most), 0.0), axis=0))
        return copied, first, whole

    _NUMBERS = ["width", "wide", "chunks", "stride", "size", "level", "eps", "nowhere", "impossible"]

    @triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
    def _merge(  # type: ignore[no-untyped-def]
        keys, peak, mass, logits, states, gain, gate, gates, followed,
        score, foreseen, token, above, names, word_of, values, ids, scores,
        width, wide, chunks, stride, size, level, eps, nowhere, impossible,
        CHANNELS: tl.constexpr, BLOCK: tl.constexpr, POINTERS: tl.constexpr, K: tl.constexpr,
        CELLS: tl.constexpr, CHUNKS: tl.constexpr, ROOT: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(0).to(tl.int64)
        b, i, m, cell = n // width, tl.arange(0, BLOCK), tl.arange(0, POINTERS), tl.arange(0, CELLS)
        inside = i < CHANNELS
        weight = tl.load(gain + i, mask=inside, other=0.0).to(tl.float32)
        gating = tl.load(gate + i, mask=inside, other=0.0).to(tl.float32)
        if EARLY:
            wait_for_others()
        line = (b * POINTERS + m) * size + level
        if ROOT:
            worth = tl.load(score + b * POINTERS + m)
        else:  # what the pointers gain or lose by the node's token
            worth = tl.load(score + (b * wide + tl.load(above + n)) * POINTERS + m)
            left, kept = tl.load(followed + 2 * level).to(tl.float32), tl.load(followed + 2 * level + 1).to(tl.float32)
            worth += tl.where(tl.load(foreseen + line - 1) == tl.load(token + n), kept, left)
        tl.store(scores + n * POINTERS + m, worth)
        x = tl.load(states + n * CHANNELS + i, mask=inside, other=0.0).to(tl.float32)
        opening = gate_after(x, weight, gating, eps, states.dtype.element_ty, CHANNELS)
        opening += tl.load(gates + level).to(tl.float32)
        named = tl.load(foreseen + line)
        column = tl.load(word_of + named, mask=named >= 0, other=-1)
        copied, first, whole = shares_of(column, tl.where(column >= 0, worth + opening, nowhere), nowhere, POINTERS)
        # The best of the words that no pointer names, and of those that some do.
        total = log_total(peak, mass, n, chunks, CHUNKS)
        plain = tl.load(logits + n * stride + column, mask=column >= 0, other=0.0).to(tl.float32) - total
        high = tl.maximum(plain, copied)
        both = high + tl.log(tl.exp(plain - high) + tl.exp(copied - high))
        rival = tl.where(first, key_of(both, column), NOTHING)
        key = tl.load(keys + n * chunks * K + cell, mask=cell < chunks * K, other=NOTHING)
        place = place_of(key)
        taken = tl.sum((place[:, None] == column[None, :]).to(tl.int32), axis=1) > 0
        key = tl.where((key == NOTHING) | taken, NOTHING, key_of(value_of(key) - total, place))
        for r in tl.static_range(K):
            best = tl.maximum(tl.max(key, axis=0), tl.max(rival, axis=0))
            key = tl.where(key == best, NOTHING, key)
            rival = tl.where(rival == best, NOTHING, rival)
            value = value_of(best) - whole
            value = tl.where(value > impossible, value, impossible)  # a broken drafter guesses too
            tl.store(values + n * K + r, value)
            tl.store(ids + n * K + r, tl.load(names + place_of(best)))
