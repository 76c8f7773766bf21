"""Kernels that find places of texts to copy from: their scores, straight from pages of keys, and what follows the best.

The references are `likeness`, `matched_tokens`, `Pointer.scores` and `point` in `models.heads.blocks.forerunner`, which
take some hundred launches; these take one for each layer whose keys are read, and three.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..early_launch import early
from ..top_k_search import top_k_fused

try:
    import triton
    import triton.language as tl

    from ..early_launch import wait_for_others
except ImportError:  # a CPU build of torch comes without it
    triton = None

PLACES = 64  # of a program


def score_places(
    keys: Sequence[Tensor],
    table: Tensor,
    asked: Tensor,
    rotations: Tensor,
    text: Tensor,
    end: Tensor,
    worth: Tensor,
    nowhere: float,
) -> Tensor:
    """Scores [B, T] of the places of texts [B, T] whose last tokens are at end [B], `nowhere` from there on.

    keys: of each layer, [pages, Hkv, rows, D], and the pages [B, P] of every text. asked [B, layers * Hkv, D]: what is
    looked for, before it is turned by row `end` of the table of rotations [positions, 2, D].
    worth: what 0, 1, .. tokens bring that agree with those at the end.
    """
    (batch, length), (heads, rows, dim) = text.shape, keys[0].shape[1:]
    scores = torch.empty((batch, length), dtype=torch.float32, device=text.device)
    for i, layer in enumerate(keys):
        _score[(batch, triton.cdiv(length, PLACES))](
            layer, table, asked, rotations, text, end, worth, scores, length, text.stride(0), table.stride(0),
            len(rotations), (dim * asked.shape[1]) ** -0.5, nowhere,
            ALL=asked.shape[1], FIRST=i * heads, HEADS=heads, ROWS=rows, DIM=dim, WIDE=triton.next_power_of_2(dim),
            MATCHES=len(worth) - 1, PLACES=PLACES, ADD=i > 0, **early(scores),
        )  # fmt: skip
    return scores


def best_places(
    scores: Tensor, text: Tensor, end: Tensor, count: int, size: int, nowhere: float
) -> tuple[Tensor, Tensor]:
    """The best places of each text, [B, count] scores, and the tokens after them, [B, count, size], -1 = none."""
    score, place = top_k_fused(scores, count)
    token = torch.empty((len(text), count, size), dtype=torch.int64, device=text.device)
    _follow[(len(text),)](
        score, place, text, end, token, text.stride(0), nowhere / 2, size,
        COUNT=count, CELLS=triton.next_power_of_2(count * size), num_warps=1, **early(score),
    )  # fmt: skip
    return score, token


if triton is not None:

    @triton.jit(do_not_specialize=["length", "stride", "pages", "positions", "scale", "nowhere"])  # type: ignore[untyped-decorator]
    def _score(  # type: ignore[no-untyped-def]
        keys, table, asked, rotations, text, end, worth, scores, length, stride, pages, positions, scale, nowhere,
        ALL: tl.constexpr, FIRST: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
        WIDE: tl.constexpr, MATCHES: tl.constexpr, PLACES: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """Adds what one layer's keys say; the first one, what the tokens say."""
        b = tl.program_id(0).to(tl.int64)
        place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
        d = tl.arange(0, WIDE)
        inside = d < DIM
        if EARLY:
            wait_for_others()
        last = tl.load(end + b)
        known = place < last
        page = tl.load(table + b * pages + place // ROWS, mask=known, other=0).to(tl.int64)
        at = tl.minimum(last, positions - 1) * 2 * DIM
        cos = tl.load(rotations + at + d, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(rotations + at + DIM + d, mask=inside, other=0.0).to(tl.float32)
        found = tl.zeros((PLACES,), tl.float32)
        for head in tl.static_range(HEADS):
            own = asked + (b * ALL + FIRST + head) * DIM
            straight = tl.load(own + d, mask=inside, other=0.0).to(tl.float32)
            swapped = tl.load(own + (d + DIM // 2) % DIM, mask=inside, other=0.0).to(tl.float32)
            query = (straight * cos + swapped * sin) * scale
            row = (page * HEADS + head) * ROWS + place % ROWS
            key = tl.load(keys + row[:, None] * DIM + d[None, :], mask=known[:, None] & inside[None, :], other=0.0)
            found += tl.sum(key.to(tl.float32) * query[None, :], axis=1)
        if ADD:
            found += tl.load(scores + b * length + place, mask=place < length, other=0.0)
        else:
            running = tl.full((PLACES,), 1, tl.int32)
            matches = tl.zeros((PLACES,), tl.int32)
            for i in tl.static_range(MATCHES):
                tail = tl.load(text + b * stride + tl.maximum(last - i, 0))
                before = tl.load(text + b * stride + place - i, mask=(place >= i) & known, other=-1)
                running = tl.where((before == tail) & (last >= i), running, 0)
                matches += running
            found += tl.load(worth + matches).to(tl.float32)
        tl.store(scores + b * length + place, tl.where(known, found, nowhere), mask=place < length)

    @triton.jit(do_not_specialize=["stride", "least", "size"])  # type: ignore[untyped-decorator]
    def _follow(  # type: ignore[no-untyped-def]
        score, place, text, end, token, stride, least, size,
        COUNT: tl.constexpr, CELLS: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        b = tl.program_id(0).to(tl.int64)
        cell = tl.arange(0, CELLS)
        real, own = cell < COUNT * size, b * COUNT + cell // size
        if EARLY:
            wait_for_others()
        after = tl.load(place + own, mask=real, other=0) + 1 + cell % size
        there = tl.load(score + own, mask=real, other=0.0) > least
        known = real & there & (after <= tl.load(end + b))
        tl.store(token + b * COUNT * size + cell, tl.load(text + b * stride + after, mask=known, other=-1), mask=real)
