"""Attention of prompts: many new rows after a text, each of which sees all before it.

A kernel for several texts of any length in one launch, which may be captured; and torch's own attention, text by text,
which needs lengths on the host. The second is the reference of the first, and what runs without CUDA or kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from ..row_layout import Pages, RowLayout
from . import tree_attention
from .kv_layer import KVLayer
from .tree_attention import LOG2_E, Tiles

try:
    import triton

    from ...kernels.tree_rows import attend_prompts
except ImportError:  # a CPU build of torch comes without it
    triton = None

LONG_RUN = 1 << 30  # rows of one text from which torch's own attention is used where there is a kernel too
TILES = Tiles(128, 0, 64, 8, 3, 1)


class Span(NamedTuple):
    """The new rows of one text, as the host knows them."""

    slot: int
    begin: int  # row of the pass
    rows: int
    length: int  # committed tokens before them


def prompts_apart(device: torch.device, dtype: torch.dtype, counts: Sequence[int]) -> bool:
    """Whether the texts of a pass are attended to one by one, in torch."""
    if triton is None or device.type != "cuda" or not tree_attention.enabled:
        return True
    return dtype != torch.float32 and len(counts) == 1 and counts[0] >= LONG_RUN


def prompt_attention_fused(query: Tensor, layout: RowLayout, kv: KVLayer, tiles: Tiles | None = None) -> Tensor:
    """query [T, H, D] -> [T, H * D]; what padding gets means nothing."""
    (rows, heads, dim), (kv_heads, batch) = query.shape, (kv.keys.shape[1], len(layout.slot))
    group = heads // kv_heads
    lines = rows * group
    tiles = tiles or tree_attention.tiles_for(lines, query.dtype, query.device, TILES)
    out = torch.zeros((rows, heads * dim), dtype=query.dtype, device=query.device)
    attend_prompts[(triton.cdiv(lines, tiles.lines) + batch, kv_heads)](
        query, *kv.arguments, layout.pages.table, layout.slot, layout.length, layout.count, layout.begin, out,
        dim**-0.5 * LOG2_E, batch, kv_heads, layout.pages.table.shape[1], kv.keys.stride(0), kv.keys.stride(1),
        BATCH=tree_attention.places_for(batch), G=group, D=dim, ROWS=tiles.lines, KEYS=tiles.keys,
        PAGE=layout.pages.size, SCALED=kv.key_scales is not None, FAR=kv.far,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def prompt_attention_reference(query: Tensor, spans: Sequence[Span], pages: Pages, kv: KVLayer) -> Tensor:
    out = torch.zeros_like(query)
    for slot, begin, count, length in spans:
        asked = query[begin : begin + count].transpose(0, 1)[None]  # [1, H, count, D]
        table = pages.table[slot, : -(-(length + count) // pages.size)]
        key, value = (x[None, :, : length + count] for x in kv.texts(table, query.dtype))
        flash = query.is_cuda and query.dtype != torch.float32  # torch knows it by its type, and makes no mask
        mask = causal_lower_right(count, length + count) if flash else _mask(count, length, query.device)
        found = F.scaled_dot_product_attention(asked, key, value, attn_mask=mask, enable_gqa=True)
        out[begin : begin + count] = found[0].transpose(0, 1)
    return out.flatten(1)


def _mask(count: int, length: int, device: torch.device) -> Tensor:
    return torch.ones((count, length + count), dtype=torch.bool, device=device).tril(length)
