"""An executor inside a CUDA graph: slots, lengths and counts are numbers on the device.

It runs several passes one after another and changes no host record; whoever replays it enters the outcome into the
K/V cache's lengths with `GraphExecutor.settle`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ..base import Output, Rows
from ..row_layout import SlotTable
from .executor import GraphExecutor


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

    def _place(self, rows: Rows, given: Tensor, taps: Collection[int]) -> Output:
        batch, width = len(rows.slots), rows.counts[0]
        numbers = self._numbers(batch * width)
        slot_table = SlotTable(
            self.slot, self.length, self._same(self.first, batch), self._count(width), numbers[::width]
        )
        logits, hidden = self.executor.run_cells(slot_table, width, given, rows.depth, rows.parent, taps)
        self.first += width
        return Output(logits, hidden, numbers.view(batch, width))

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
