"""An executor inside a CUDA graph: slots, lengths and counts are numbers on the device.

It runs several passes one after another and changes no host record; whoever replays it enters the outcome into the
K/V cache's lengths with `GraphExecutor.settle`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ...models.decoder import Layer
from ...models.layers.fused_pass import fused_pass_of
from ..base import Output, Rows
from ..row_layout import SlotTable
from .executor import GraphExecutor, TreeAttention
from .pad_rows import pad_rows


class CapturedPasses:
    """One round of B sequences, whose slots [B] hold texts of length [B] and no scratch rows; slot -1 is padding."""

    decoder = capturing = compiled = None  # nothing more inside a capture

    def __init__(self, executor: GraphExecutor, slot: Tensor, length: Tensor) -> None:
        self.executor, self.slot, self.length = executor, slot, length
        self.first = 0  # scratch rows so far
        self._counts: dict[int, Tensor] = {}  # new rows of each sequence by those of a real one
        self.device, self.vocab_size = executor.device, executor.vocab_size
        self.max_scratch, self.hidden_size = executor.max_scratch, executor.hidden_size

    def read(self, given: Tensor, count: Tensor, taps: Collection[int] = ()) -> Output:
        """Read count[b] of the W given tokens [B, W], or embeddings [B, W, d], for good; the outcome of the last."""
        batch, width = given.shape[:2]
        depth = self._numbers(width).expand(batch, width).reshape(-1)
        slot_table = SlotTable(
            self.slot, self.length, self._same(0, batch), count, self._numbers(batch * width)[::width]
        )
        logits, hidden = self.executor.run_cells(slot_table, width, given.flatten(0, 1), depth, None, taps, last=True)
        self.length = self.length + count
        return Output(logits, hidden, self._numbers(batch)[:, None])

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        """Scratch rows, as many for every sequence."""
        return self._place(rows, rows.token, taps)

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self._place(rows, embeds, taps)

    def read_beside(self, streams: Tensor, layers: Sequence[tuple[int, Layer]]) -> Tensor:
        """As `TorchExecutor.read_beside`: chains after the texts, streams [B, W, d]; their rows are dropped."""
        (batch, width, _), executor = streams.shape, self.executor
        depth = self._numbers(width).expand(batch, width).reshape(-1)
        given = self._scratch(batch, width), width, streams.flatten(0, 1), depth, None
        layout, laid = pad_rows(*given, executor.seen, executor.limits)
        attend = TreeAttention(executor.kv_cache, executor.decoder.rotations, layout)
        fused = fused_pass_of(attend, laid)
        for index, layer in layers:
            if fused is not None and layer.usual:
                laid = fused.through(layer, index, laid, None)
            else:
                laid = layer(laid, laid, laid, attend, index)  # it turns heads by itself: nobody looks at cos and sin
        return laid.view_as(streams)

    def key_pages(self, layers: Sequence[int], rows: int) -> tuple[list[Tensor], Tensor] | None:
        """All pages of keys of these layers, [pages, Hkv, rows, D] each, and which of them [B, P] hold the first `rows`
        rows of each text, at least; None where keys are rounded."""
        kv_cache = self.executor.kv_cache
        found = [kv_cache.in_layer(layer) for layer in layers]
        if found[0].key_scales is not None:
            return None
        return [layer.keys for layer in found], kv_cache.pages.table[:, : kv_cache.sizes.holding(rows)][self.slot]

    def keys(self, layer: int, rows: int) -> Tensor:
        """[B, P, Hkv, rows of a page, D] a layer's keys of each text, the first `rows` of them at least, by page.

        What lies beyond a text's end means nothing."""
        kv_cache = self.executor.kv_cache
        table = kv_cache.pages.table[:, : kv_cache.sizes.holding(rows)][self.slot]
        return kv_cache.in_layer(layer).pages_of_keys(table, kv_cache.wide)

    def _place(self, rows: Rows, given: Tensor, taps: Collection[int]) -> Output:
        batch, width = len(rows.slots), rows.counts[0]
        slot_table = self._scratch(batch, width)
        logits, hidden = self.executor.run_cells(slot_table, width, given, rows.depth, rows.parent, taps)
        self.first += width
        return Output(logits, hidden, self._numbers(batch * width).view(batch, width))

    def _scratch(self, batch: int, width: int) -> SlotTable:
        """The slot table of the next scratch rows, as many for every sequence."""
        first, begin = self._same(self.first, batch), self._numbers(batch * width)[::width]
        return SlotTable(self.slot, self.length, first, self._count(width), begin)

    def _count(self, width: int) -> Tensor:
        """[B] width, and 0 for padding, of which a batch of one has none."""
        if len(self.slot) == 1:
            return self._same(width, 1)
        if width not in self._counts:
            self._counts[width] = (self.slot >= 0) * width
        return self._counts[width]

    def _numbers(self, count: int) -> Tensor:
        """0, 1, .. [count]: a part of those that the executor keeps, where it keeps enough; every launch costs."""
        kept = self.executor.numbers
        return kept[:count] if count <= len(kept) else torch.arange(count, device=self.device)

    def _same(self, value: int, batch: int) -> Tensor:
        """[batch] times this value."""
        return self._numbers(value + 1)[value:].expand(batch)
