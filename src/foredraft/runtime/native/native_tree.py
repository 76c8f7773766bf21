"""Rounds of a drafting head on the native executor: a level of a tree is one call, from tokens to the top words.

What stays the same is given to the library once. `NativeExecutor.forward_pairs` with a search after it is the reference
and gives the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Seq
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models import native
from ...models.layers.linear import TiledLinear
from .executor import NativeExecutor

Numbers = NDArray[Any]
Found = tuple[Numbers, Numbers]  # log-probabilities and ids of the top words, [B, w, k] each


class Levels:
    """A head that reads pairs, for so many sequences that read as many rows a level; their roots may be ragged.

    A table holds what the head handed back: after the text of every sequence first, then level after level.
    """

    _first: int  # scratch rows of each sequence
    _begin: int  # where the newest level lies in the table
    _wide: int  # its rows a sequence
    _base: Numbers  # [B, 1] lengths of the texts

    def __init__(self, executor: NativeExecutor, batch: int, most: int, width: int, catch_up: int) -> None:
        """At most `most` rows a sequence in the levels of a round, `width` in one; `catch_up` at the root."""
        self.executor, self._batch, self._widest = executor, batch, batch * width
        size, rows = executor.hidden_size, batch * max(width, catch_up)
        self._table = torch.empty((batch * (most + 1), size), dtype=torch.bfloat16)
        self._output, self._features = torch.empty((2, rows, size), dtype=torch.bfloat16).unbind(0)
        self._logits = torch.empty(0)
        self._token, self._which, self._position = np.empty((3, rows), dtype=np.int64)
        self._lines = np.empty((batch, most), dtype=np.int32)  # scratch row above each; -1 = the text
        self._last = np.empty(batch, dtype=np.int32)  # the newest row of each sequence, at the root
        self._who = np.arange(batch)[:, None]
        self._order, self._tail, self._spans = executor.order_of_pairs(), executor.tail(), (native.Span * batch)()
        self._taps = (ctypes.c_void_p * (executor.num_layers + 1))()
        self._tell()

    def _tell(self) -> None:
        """The addresses of all that does not move."""
        order, tail, embedding = self._order, self._tail, self.executor.decoder.embedding
        order.token = native.Source.at(embedding, self._token.ctypes.data)
        order.position, order.span = self._position.ctypes.data, ctypes.addressof(self._spans)
        order.taps, order.tail = ctypes.addressof(self._taps), ctypes.addressof(tail)
        order.spans, tail.rows, tail.features = self._batch, self._batch, self._features.data_ptr()
        self._handed = native.Source(self._table.data_ptr(), self._which.ctypes.data, self._table.stride(0))
        self._last_row, self._line = self._last.ctypes.data, [line.ctypes.data for line in self._lines]

    def root(
        self, slots: Seq[int], tokens: list[list[int]], features: Tensor, ids: Tensor, least: float, k: int
    ) -> Found:
        """Begin a round: read for good what each text has grown by, and say what follows.

        features [T, d] go with the tokens; ids are those of the head's words, and no log-probability is below `least`.
        """
        self._slots, self._ids, self._tail.ids, self._tail.least = tuple(slots), ids, ids.data_ptr(), least
        counts, lengths = [len(run) for run in tokens], [self.executor.kv_cache.lengths[slot] for slot in slots]
        rows = sum(counts)
        self._use_words()
        self._token[:rows] = [token for run in tokens for token in run]
        places = [length + i for length, count in zip(lengths, counts, strict=True) for i in range(count)]
        self._position[:rows] = self._inside(np.array(places))
        begin = 0
        for b, (span, slot, count, length) in enumerate(zip(self._spans, slots, counts, lengths, strict=True)):
            span.slot, span.begin, span.count, span.length, span.first, span.parent = (
                slot,
                begin,
                count,
                length,
                0,
                None,
            )
            begin += count
            self._last[b] = begin - 1
        states = features.to(torch.bfloat16).contiguous()
        self._order.stream, self._order.output = native.Source.of(states), self._output.data_ptr()
        self._order.threads, self._tail.row = torch.get_num_threads(), self._last_row
        found = self._run(rows, (self._batch, 1, min(k, len(ids))), counts)
        self.executor.commit(slots, counts)
        self._table[: self._batch] = self._output[torch.from_numpy(self._last)]
        self._expect_levels()
        return found

    def below(self, token: Numbers, above: Numbers, depth: int, k: int) -> Found:
        """The same after nodes [B, w], `depth` tokens after the text, below columns `above` of the level before."""
        (batch, width), first = token.shape, self._first
        rows, place = batch * width, self._begin + batch * self._wide
        self._token[:rows] = token.reshape(-1)
        self._which[:rows] = (above + (self._who * self._wide + self._begin)).reshape(-1)
        self._lines[:, first : first + width] = above + (first - self._wide) if first else -1
        self._position[:rows].reshape(batch, width)[:] = self._inside(self._base + depth)
        for b, span in enumerate(self._spans):
            span.begin, span.count, span.first = b * width, width, first
        order = self._order
        order.stream.count, order.output = place, self._table.data_ptr() + place * self._table.stride(0) * 2
        found = self._run(rows, (batch, width, min(k, len(self._ids))), [width] * batch)
        self._first, self._begin, self._wide = first + width, place, width
        return found

    def _expect_levels(self) -> None:
        """The root was read; its children come next."""
        self._first, self._begin, self._wide = 0, 0, 1
        self._order.stream, self._tail.row = self._handed, None
        for span, line in zip(self._spans, self._line, strict=True):
            span.length, span.parent = self.executor.kv_cache.lengths[span.slot], line
        self._base = np.array([[span.length] for span in self._spans])

    def _run(self, rows: int, shape: tuple[int, int, int], counts: Seq[int]) -> Found:
        self.executor.kv_cache.reserve(self._slots, counts)
        values, places = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
        self._order.rows, tail = rows, self._tail
        tail.top, tail.values, tail.places = shape[2], values.ctypes.data, places.ctypes.data
        self.executor.run_pairs(self._order)
        return values, places

    def _use_words(self) -> None:
        """A head may change its words from round to round."""
        words, tail = cast(TiledLinear, self.executor.decoder.head), self._tail
        if self._logits.numel() < self._widest * words.struct.columns:
            self._logits = torch.empty(self._widest * words.struct.columns)
        tail.words, tail.logits = words.struct, self._logits.data_ptr()
        tail.words_bias = None if words.bias is None else words.bias.data_ptr()

    def _inside(self, position: Numbers) -> Numbers:
        """Rows that overhang the context share its last position."""
        inside: Numbers = np.minimum(position, self.executor.decoder.config.max_position - 1)
        return inside
