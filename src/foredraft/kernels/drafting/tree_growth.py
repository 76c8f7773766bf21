"""Growth of EAGLE-2 trees: the candidates of a level and which are read next, and the best nodes of a tree.

Every sequence grows the whole tree, so that shapes and the depth of a node follow from its number: `width` nodes on the
first level, width * width on each of the others. `core.shapes.eagle2_growth` calls these; `Eagle2Tree.grow` and
`TreeBuilder.best` are the references.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    from ..top_k_search import NOTHING, key_of
except ImportError:  # a CPU build of torch comes without it
    triton = None

TILE = 64
WIDEST = 16  # front


def can_grow(logits: Tensor, width: int) -> bool:
    """Whether the kernels take a tree of this width; a smaller vocabulary would leave gaps in it."""
    return triton is not None and logits.is_cuda and width <= min(WIDEST, logits.shape[1])


def grow_level(
    found: tuple[Tensor, Tensor],
    rows: Tensor,
    above: tuple[Tensor, Tensor] | None,
    nodes: tuple[Tensor, Tensor, Tensor],
    begin: int,
    depth: int,
) -> tuple[Tensor, Tensor]:
    """Enter a level into the nodes from `begin` on; returns the front [5, B, width] that is read next, and its values.

    found: log-probabilities and tokens [M, width] after the rows that were read; rows [B, columns] of them for each
    sequence. above: the front that was read and its values, None = the root. nodes: token, parent, value [B, numbered].
    """
    (more, ids), (token, parent, value) = found, nodes
    (batch, columns), width = rows.shape, more.shape[1]
    front = torch.empty((5, batch, width), dtype=torch.int64, device=more.device)
    front_value = torch.empty((batch, width), device=more.device)
    _grow[(batch,)](
        more, ids, rows.contiguous(), *((front, front_value) if above is None else above),
        token, parent, value, front, front_value, begin, token.shape[1], depth, batch,
        COLUMNS=columns, K=width, CELLS=max(32, triton.next_power_of_2(columns * width)), ROOT=above is None,
        num_warps=1 if columns * width <= 64 else 4,
    )  # fmt: skip
    return front, front_value


def pick_best(token: Tensor, parent: Tensor, value: Tensor, count: int, width: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of every sequence in the order of making; of equal ones those made first.

    Returns token, parent, depth, order and number in the whole tree [5, B, count], and probabilities [B, count].
    """
    (batch, numbered), device = token.shape, token.device
    rank = torch.empty((batch, numbered), dtype=torch.int32, device=device)
    out = torch.empty((5, batch, count), dtype=torch.int64, device=device)
    best = torch.empty((batch, count), device=device)
    grid = (batch, triton.cdiv(numbered, TILE))
    _rank[grid](value, rank, numbered, TILE=TILE)
    _pick[grid](token, parent, value, rank, out, best, numbered, count, batch, width, TILE=TILE)
    return out, best


if triton is not None:

    @triton.jit(do_not_specialize=["begin", "numbered", "depth", "batch"])  # type: ignore[untyped-decorator]
    def _grow(  # type: ignore[no-untyped-def]
        more, ids, rows, front, front_value, token, parent, value, new_front, new_value,
        begin, numbered, depth, batch,
        COLUMNS: tl.constexpr, K: tl.constexpr, CELLS: tl.constexpr, ROOT: tl.constexpr,
    ):  # fmt: skip
        b = tl.program_id(0)
        cell = tl.arange(0, CELLS)  # column of the front * K + rank of the token after it
        real, column = cell < COLUMNS * K, cell // K
        row = tl.load(rows + b * COLUMNS + column, mask=real, other=0)
        worth = tl.load(more + row * K + cell % K, mask=real, other=0.0)
        name = tl.load(ids + row * K + cell % K, mask=real, other=0)
        above = tl.full((CELLS,), -1, tl.int64)
        if not ROOT:
            above = tl.load(front + b * COLUMNS + column, mask=real, other=0)
            worth += tl.load(front_value + b * COLUMNS + column, mask=real, other=0.0)
        at = b * numbered + begin + cell
        tl.store(token + at, name, mask=real)
        tl.store(parent + at, above, mask=real)
        tl.store(value + at, worth, mask=real)
        key = tl.where(real, key_of(worth, cell), NOTHING)
        kept = tl.zeros((CELLS,), tl.int32)
        for _ in tl.static_range(K):
            hit = key == tl.max(key, axis=0)
            kept = tl.where(hit, 1, kept)
            key = tl.where(hit, NOTHING, key)
        chosen = (kept > 0) & real
        goal = b * K + tl.cumsum(kept, axis=0) - 1
        plane = batch * K
        tl.store(new_front + goal, (begin + cell).to(tl.int64), mask=chosen)
        tl.store(new_front + plane + goal, name, mask=chosen)
        tl.store(new_front + 2 * plane + goal, above, mask=chosen)
        tl.store(new_front + 3 * plane + goal, (depth + cell * 0).to(tl.int64), mask=chosen)
        tl.store(new_front + 4 * plane + goal, column.to(tl.int64), mask=chosen)
        tl.store(new_value + goal, worth, mask=chosen)

    @triton.jit(do_not_specialize=["numbered"])  # type: ignore[untyped-decorator]
    def _rank(value, rank, numbered, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
        """How many nodes go before each: those of larger value, and of equal ones those made first."""
        b = tl.program_id(0)
        i = tl.program_id(1) * TILE + tl.arange(0, TILE)
        own = tl.load(value + b * numbered + i, mask=i < numbered, other=0.0)
        before = tl.zeros((TILE,), tl.int32)
        for start in range(0, numbered, TILE):
            j = start + tl.arange(0, TILE)
            other = tl.load(value + b * numbered + j, mask=j < numbered, other=-float("inf"))
            equal = (other[None, :] == own[:, None]) & (j[None, :] < i[:, None])
            before += tl.sum(((other[None, :] > own[:, None]) | equal).to(tl.int32), axis=1)
        tl.store(rank + b * numbered + i, before, mask=i < numbered)

    @triton.jit(do_not_specialize=["numbered", "nodes", "batch", "width"])  # type: ignore[untyped-decorator]
    def _pick(  # type: ignore[no-untyped-def]
        token, parent, value, rank, out, out_value, numbered, nodes, batch, width, TILE: tl.constexpr
    ):
        """Counts, among the nodes that stay, those before each one, before its parent, and its earlier siblings."""
        b = tl.program_id(0)
        base = b * numbered
        i = tl.program_id(1) * TILE + tl.arange(0, TILE)
        real = i < numbered
        above = tl.load(parent + base + i, mask=real, other=-1).to(tl.int32)
        stays = real & (tl.load(rank + base + i, mask=real, other=nodes) < nodes)
        place = tl.zeros((TILE,), tl.int32)
        higher = tl.zeros((TILE,), tl.int32)
        earlier = tl.zeros((TILE,), tl.int32)
        for start in range(0, numbered, TILE):
            j = start + tl.arange(0, TILE)
            there = j < numbered
            kept = there & (tl.load(rank + base + j, mask=there, other=nodes) < nodes)
            over = tl.load(parent + base + j, mask=there, other=-1).to(tl.int32)
            before = kept[None, :] & (j[None, :] < i[:, None])
            place += tl.sum(before.to(tl.int32), axis=1)
            higher += tl.sum((kept[None, :] & (j[None, :] < above[:, None])).to(tl.int32), axis=1)
            earlier += tl.sum((before & (over[None, :] == above[:, None])).to(tl.int32), axis=1)
        goal, plane = b * nodes + place, batch * nodes
        depth = tl.where(i < width, 1, 2 + (i - width) // (width * width))
        tl.store(out + goal, tl.load(token + base + i, mask=real, other=0), mask=stays)
        tl.store(out + plane + goal, tl.where(above < 0, -1, higher).to(tl.int64), mask=stays)
        tl.store(out + 2 * plane + goal, depth.to(tl.int64), mask=stays)
        tl.store(out + 3 * plane + goal, earlier.to(tl.int64), mask=stays)
        tl.store(out + 4 * plane + goal, i.to(tl.int64), mask=stays)
        tl.store(out_value + goal, tl.exp(tl.load(value + base + i, mask=real, other=0.0)), mask=stays)
