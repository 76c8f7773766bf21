"""An executor as recorded functions see it: slots, lengths and counts are numbers on the device.

It runs several passes behind one another and changes no host record; whoever replays it enters the outcome into the
store's books with `GraphExecutor.settle`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from .base import Output, Rows
from .graphs import GraphExecutor
from .ground import Book


class Inside:
    """One round of B sequences, whose slots [B] hold texts of length [B] and no scratch rows."""

    def __init__(self, executor: GraphExecutor, slot: Tensor, length: Tensor) -> None:
        self.executor, self.slot, self.length = executor, slot, length
        self.first = 0  # scratch rows so far
        self.device, self.vocab_size = executor.device, executor.vocab_size
        self.max_scratch, self.hidden_size = executor.max_scratch, executor.hidden_size

    def read(self, given: Tensor, count: Tensor, taps: Collection[int] = ()) -> Output:
        """Read count[b] of the W given tokens [B, W], or embeddings [B, W, d], for good; the outcome of the last."""
        batch, width = given.shape[:2]
        begin = torch.arange(batch, device=self.device) * width
        depth = torch.arange(width, device=self.device).repeat(batch)
        book = Book(self.slot, self.length, torch.zeros_like(count), count, begin)
        logits, hidden = self.executor.run_cells(book, width, given.flatten(0, 1), depth, None, taps, last=True)
        self.length = self.length + count
        return Output(logits, hidden, torch.arange(batch, device=self.device)[:, None])

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        """Scratch rows, as many for every sequence."""
        return self._place(rows, rows.token, taps)

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self._place(rows, embeds, taps)

    def _place(self, rows: Rows, given: Tensor, taps: Collection[int]) -> Output:
        batch, width = len(rows.slots), rows.counts[0]
        begin = torch.arange(batch, device=self.device) * width
        first, count = torch.full_like(begin, self.first), torch.full_like(begin, width)
        book = Book(self.slot, self.length, first, count, begin)
        logits, hidden = self.executor.run_cells(book, width, given, rows.depth, rows.parent, taps)
        self.first += width
        return Output(logits, hidden, torch.arange(batch * width, device=self.device).view(batch, width))
