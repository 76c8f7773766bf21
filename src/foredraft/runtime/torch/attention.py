"""Attention of new rows over the K/V cache: a row sees the committed text, its ancestors among scratch rows, itself.

Two ways that must agree: `RaggedAttention` goes sequence by sequence over views of exactly the right length (best on a
CPU, where padding costs time), `PaddedAttention` takes the batch at once with a mask (for devices that dislike loops).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.trees.layout import ancestor_mask
from ..base import Rows
from ..kv_cache import KVCache


def scratch_lines(kv_cache: KVCache, rows: Rows, first: tuple[int, ...]) -> list[list[int] | None]:
    """Per slot the scratch row above each of its scratch rows, old and new; None = they are a chain.

    Reads and updates the cache's record of which scratch row hangs below which.
    """
    lines: list[list[int] | None] = []
    parents = None if rows.parent is None else rows.parent.tolist()
    start = 0
    for slot, count, before in zip(rows.slots, rows.counts, first, strict=True):
        earlier = kv_cache.parents[slot] if before else []
        chain = list(range(before - 1, before + count - 1))
        new = chain if parents is None else parents[start : start + count]
        start += count
        line = (earlier or []) + new
        kv_cache.parents[slot] = line
        lines.append(None if line == list(range(-1, before + count - 1)) else line)
    return lines


def scratch_masks(kv_cache: KVCache, rows: Rows, first: tuple[int, ...]) -> list[Tensor | None]:
    """Per slot [count, first + count] bool, True = visible among the scratch rows; None = the rows are a chain."""
    device = kv_cache.data.device
    masks = [
        None if line is None else ancestor_mask(torch.tensor([line]))[0][before:].to(device)
        for line, before in zip(scratch_lines(kv_cache, rows, first), first, strict=True)
    ]
    if rows.block == 1:
        return masks
    each = zip(masks, rows.counts, first, strict=True)
    return [_with_blocks(mask, count, before, rows.block).to(device) for mask, count, before in each]


def _with_blocks(visible: Tensor | None, count: int, before: int, size: int) -> Tensor:
    """The same, and every row sees its whole block of `size` rows, counted from the last."""
    if visible is None:
        visible = torch.ones((count, before + count), dtype=torch.bool).tril(before)
    block = (torch.arange(count, device=visible.device) - count) // size
    visible[:, before:] |= block[:, None] == block[None, :]
    return visible


def places_of(kv_cache: KVCache, slot: int, scratch: int) -> Tensor:
    """[length + scratch] positions of a slot's rows: the committed text, then scratch rows by their depth."""
    length, depth, parents = kv_cache.lengths[slot], [0] * scratch, kv_cache.parents[slot]
    for i, parent in enumerate(range(-1, scratch - 1) if parents is None else parents[:scratch]):
        depth[i] = 0 if parent < 0 else depth[parent] + 1
    return torch.cat((torch.arange(length), length + torch.tensor(depth, dtype=torch.int64)))


def within(places: Tensor, count: int, window: int) -> Tensor:
    """[count, rows] bool: which rows lie within the window of each of the last `count`."""
    return places[None, :] > places[-count:, None] - window


class RaggedAttention:
    """One attention call per sequence, over views."""

    def __init__(
        self, kv_cache: KVCache, rows: Rows, first: tuple[int, ...], masks: MaskBuffers, windows: Sequence[int] = ()
    ) -> None:
        self.kv_cache, self.windows = kv_cache, windows
        self.spans = []
        self.near: dict[int, list[Tensor]] = {}  # masks of layers with a window, by window and slot
        start = 0
        visible = scratch_masks(kv_cache, rows, first)
        for b, (slot, count) in enumerate(zip(rows.slots, rows.counts, strict=True)):
            at = kv_cache.lengths[slot] + first[b]
            mask = masks.view(slot, visible[b], count, first[b], kv_cache.lengths[slot])
            self.spans.append((slot, start, start + count, at, at + count, mask))
            start += count
            for window in set(windows) - {0}:
                seen = within(places_of(kv_cache, slot, first[b] + count), count, window)
                far = torch.zeros(seen.shape, dtype=kv_cache.data.dtype).masked_fill_(~seen, -torch.inf)
                far = far.to(kv_cache.data.device)
                self.near.setdefault(window, []).append(far if mask is None else far + mask)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.kv_cache.layer(layer)
        out = torch.empty_like(q) if len(self.spans) > 1 else None
        near = self.near.get(self.windows[layer]) if self.windows else None
        for number, (slot, begin, end, at, upto, mask) in enumerate(self.spans):
            mask = mask if near is None else near[number]
            key, value = keys[slot], values[slot]
            key[:, at:upto] = k[begin:end].transpose(0, 1)
            value[:, at:upto] = v[begin:end].transpose(0, 1)
            query = q[begin:end].transpose(0, 1)  # [H, count, D]
            part = F.scaled_dot_product_attention(
                query[None], key[None, :, :upto], value[None, :, :upto], attn_mask=mask, enable_gqa=True
            )[0].transpose(0, 1)
            if out is None:
                return part.reshape(q.shape[0], -1)
            out[begin:end] = part
        assert out is not None
        return out.flatten(1)

    def together(self, layers: range, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Several layers at once: q [T, N, H, D], k and v [T, N, Hkv, D] -> [T, N, H * D]."""
        block = self.kv_cache.data[layers.start : layers.stop]  # [N, 2, slots, Hkv, rows, D]
        out = torch.empty_like(q)
        for slot, begin, end, at, upto, mask in self.spans:
            key, value = block[:, 0, slot], block[:, 1, slot]
            key[:, :, at:upto] = k[begin:end].permute(1, 2, 0, 3)
            value[:, :, at:upto] = v[begin:end].permute(1, 2, 0, 3)
            query = q[begin:end].permute(1, 2, 0, 3)  # [N, H, count, D]
            part = F.scaled_dot_product_attention(
                query, key[:, :, :upto], value[:, :, :upto], attn_mask=mask, enable_gqa=True
            )
            out[begin:end] = part.permute(2, 0, 1, 3)
        return out.flatten(2)


class MaskBuffers:
    """Additive masks without a per-step allocation that grows with the context.

    A buffer row is `reach` zeros followed by the block of scratch columns; a sequence of `length` committed tokens
    takes the view that begins `reach - length` columns in. Chains share one triangle that never changes; of trees,
    every slot and scratch row has a row of its own, so that masks hold until the slot is committed.
    """

    def __init__(self, slots: int, width: int, reach: int, dtype: torch.dtype, device: torch.device) -> None:
        self.reach, self.width = reach, width
        self.trees = torch.zeros((slots, width, reach + width), dtype=dtype, device=device)
        self.triangle = torch.zeros((width, reach + width), dtype=dtype, device=device)
        above = torch.ones((width, width), dtype=torch.bool, device=device).triu(1)
        self.triangle[:, reach:].masked_fill_(above, -torch.inf)

    def view(self, slot: int, visible: Tensor | None, count: int, before: int, length: int) -> Tensor | None:
        """[count, length + before + count] or None where every row sees everything."""
        begin = self.reach - length
        if visible is None:
            if count == 1:
                return None
            return self.triangle[before : before + count, begin : self.reach + before + count]
        lines = self.trees[slot, before : before + count, : self.reach + before + count]
        block = lines[:, self.reach :]
        block.zero_()
        block.masked_fill_(~visible, -torch.inf)
        return lines[:, begin:]


class PaddedAttention:
    """One attention call for the whole batch; rows are padded to the longest run and masked."""

    def __init__(self, kv_cache: KVCache, rows: Rows, first: tuple[int, ...], windows: Sequence[int] = ()) -> None:
        self.kv_cache, self.index, self.windows = kv_cache, rows.index(), windows
        device = kv_cache.data.device
        visible = scratch_masks(kv_cache, rows, first)
        lengths = [kv_cache.lengths[slot] for slot in rows.slots]
        self.upto = max(n + f + c for n, f, c in zip(lengths, first, rows.counts, strict=True))
        batch, width = self.index.shape
        mask = torch.zeros((batch, 1, width, self.upto), dtype=torch.bool, device=device)
        for b, (length, before, count) in enumerate(zip(lengths, first, rows.counts, strict=True)):
            mask[b, 0, :, :length] = True
            block = visible[b]
            if block is None:
                block = torch.ones((count, before + count), dtype=torch.bool, device=device).tril(before)
            mask[b, 0, :count, length : length + before + count] = block
            mask[b, 0, count:, length] = True  # padding rows must see something
        self.mask, self.near = mask, {window: mask.clone() for window in set(windows) - {0}}
        for window, near in self.near.items():
            for b, (slot, before, count) in enumerate(zip(rows.slots, first, rows.counts, strict=True)):
                seen = within(places_of(kv_cache, slot, before + count), count, window).to(device)
                near[b, 0, :count, : seen.shape[1]] &= seen
        self.slots = torch.tensor(rows.slots, device=device)
        cells = [(b, i) for b, count in enumerate(rows.counts) for i in range(count)]
        self.row_of = torch.tensor([b for b, _ in cells], device=device)
        self.column_of = torch.tensor([i for _, i in cells], device=device)
        place = [lengths[b] + first[b] + i for b, i in cells]
        self.place = torch.tensor(place, device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.kv_cache.layer(layer)
        slot = self.slots[self.row_of]
        keys[slot, :, self.place] = k
        values[slot, :, self.place] = v
        query = q[self.index].transpose(1, 2)  # [B, H, width, D]
        key, value = keys[self.slots, :, : self.upto], values[self.slots, :, : self.upto]
        mask = self.near.get(self.windows[layer], self.mask) if self.windows else self.mask
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2)[self.row_of, self.column_of].flatten(1)
