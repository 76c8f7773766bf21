"""Levels of a block drafter on the native executor: from tokens and the states above them to the top words.

What stays the same is given to the library once. `ForerunnerHead.below` and a search after it are the reference.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models import native
from ...models.heads import ForerunnerHead
from ...models.layers.linear import TiledLinear
from .copied_words import Copies
from .executor import NativeExecutor

Numbers = NDArray[Any]
Found = tuple[Numbers, Numbers]  # log-probabilities and ids of the top words, [B, w, k] each


def corrects_natively(head: ForerunnerHead) -> bool:
    """Whether the library can run the levels of this head."""
    if not head.corrects or head.norm.dtype != torch.bfloat16:
        return False
    products = (head.correction.row, head.correction.node, head.correction.down, head.head)
    return all(isinstance(product, TiledLinear) for product in products)


class CorrectedLevels:
    """One round of `batch` sequences, at most `width` nodes of each a level."""

    logits: Tensor  # [rows, words] of the newest level
    features: Tensor  # [rows, d] of the newest level

    def __init__(
        self, executor: NativeExecutor, head: ForerunnerHead, words: TiledLinear, batch: int, width: int
    ) -> None:
        """`words`: the output rows that are in use, which may change from round to round."""
        self.executor, self.head, self._words, self._batch = executor, head, words, batch
        self._who, d = np.arange(batch)[:, None], head.hidden_size
        self._states = torch.empty((2, batch * width, d), dtype=torch.bfloat16)  # of this level and the one above
        self._features = torch.empty((batch * width, d), dtype=torch.bfloat16)
        self._token, self._above = np.empty((2, batch * width), dtype=np.int64)
        self._wide, self._now = 1, 0
        self._order, self._taps = executor.order_of_pairs(), (ctypes.c_void_p * (executor.num_layers + 1))()
        self._order.first_layer = self._order.last_layer = self._order.spans = 0
        self._tail = native.Tail(head.norm.data_ptr())
        self._order.taps, self._order.tail = ctypes.addressof(self._taps), ctypes.addressof(self._tail)
        self._correction = self._fixed()

    def _fixed(self) -> native.Correction:
        """The addresses of all that does not move."""
        head, part = self.head, self.head.correction
        order = native.Correction(hidden=head.hidden_size, eps=part.eps, scale=1.0 / head.unit)
        order.node, order.down, order.norm = part.node.struct, part.down.struct, part.above_norm.data_ptr()
        order.inner, order.tiles = order.down.depth, self._order.tiles
        order.token = native.Source.at(head.embedding, self._token.ctypes.data)
        return order

    def begin(self, rows: Tensor, shares: Tensor, ids: Tensor, index: Tensor, least: float) -> None:
        """A round: the backbone's rows [B, size, d] and what they share, [B, size, 2 inner]; the ids of the words, and
        the columns of ids; no log-probability is below `least`."""
        self._rows, self._shares, self._ids, self.index = rows.contiguous(), shares.contiguous(), ids, index
        self._tail.ids, self._tail.least = ids.data_ptr(), least
        words = self._words
        self._tail.words, self._tail.words_bias = words.struct, None if words.bias is None else words.bias.data_ptr()
        self._logits = torch.empty((len(self._features), words.struct.columns))
        self._tail.logits, self._tail.features = self._logits.data_ptr(), self._features.data_ptr()
        self._wide, self._now = 1, 0
        self._states[0, : self._batch] = self._rows[:, 0]

    def root(self, k: int) -> Found:
        """The top words of a round that has begun."""
        found = self._search(1, k)
        self.executor.run_pairs(self._order)
        return found

    def below(self, token: Numbers, above: Numbers, level: int, k: int) -> Found:
        """The same after nodes [B, w] of this level, whose parents are columns `above` of the level before."""
        self._correct(token, above, level)
        self.executor.code.correct(self._correction)
        self._wide, self._now = token.shape[1], 1 - self._now
        found = self._search(self._wide, k)
        self.executor.run_pairs(self._order)
        return found

    def chain(self, length: int, copies: Copies | None) -> Tensor:
        """The top token, the one after it, ..: [B, length]; for a round that has begun, in one call."""
        tokens = np.empty((length, self._batch), dtype=np.int64)
        order = native.GreedyChain(length, self._batch)
        self.begin_levels(order, 1, length, copies)
        order.tokens = tokens.ctypes.data
        self.executor.code.greedy_chain(order)
        return torch.from_numpy(tokens.T)

    def begin_levels(
        self, order: native.GreedyChain | native.ValueTree, k: int, depth: int, copies: Copies | None
    ) -> int:
        """Have the library go on from a round that has begun, level by level down to `depth`. Words that it will look
        for after every node: k, if there are as many."""
        assert depth <= self._rows.shape[1]  # it goes from row to row,
        assert k * self._batch <= len(self._token)  # and reads as many nodes a level as it looks for words
        who = np.zeros((self._batch, 1), dtype=np.int64)
        found = self._search(1, k)
        if depth > 1:
            self._correct(who, who, 1)
        order.words, order.correction = ctypes.addressof(self._order), ctypes.addressof(self._correction)
        if copies is not None:
            copies.ask(found, (self.logits, self.features), self.index, 0)
            copies.enter(order)
        return found[0].shape[2]

    def _correct(self, token: Numbers, above: Numbers, level: int) -> None:
        """Describe the states of nodes of a level."""
        (batch, width), order = token.shape, self._correction
        count = batch * width
        self._token[:count], self._above[:count] = token.reshape(-1), (above + self._who * self._wide).reshape(-1)
        before, after = self._states[self._now], self._states[1 - self._now]
        order.rows, order.width, order.threads = count, width, torch.get_num_threads()
        order.above = native.Source(before.data_ptr(), self._above.ctypes.data, before.stride(0), len(before))
        order.share, order.row = self._shares[0, level].data_ptr(), self._rows[0, level].data_ptr()
        order.share_stride, order.row_stride = self._shares.stride(0), self._rows.stride(0)
        order.token.row, order.state = self._token.ctypes.data, after.data_ptr()

    def _search(self, width: int, k: int) -> Found:
        """Describe the search for the top words of the newest states; where these will be."""
        shape = (self._batch, width, min(k, len(self._ids)))
        values, places = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
        order, tail, rows = self._order, self._tail, self._batch * width
        order.rows, order.threads = rows, torch.get_num_threads()
        order.stream = native.Source.of(self._states[self._now])
        tail.top, tail.values, tail.places = shape[2], values.ctypes.data, places.ctypes.data
        self.logits, self.features = self._logits[:rows], self._features[:rows]
        return values, places
