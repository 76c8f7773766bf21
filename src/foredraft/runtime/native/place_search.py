"""Where a forerunner may copy from, in one call of the library. `point` of its block is the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...models import native
from ...models.heads import ForerunnerHead
from ...models.heads.blocks.forerunner import MATCHES, NOWHERE, POINTERS, Pointers
from .executor import NativeExecutor

assert POINTERS <= native.MOST  # the library keeps no more


class PlaceSearch:
    """What stays the same from text to text is given to the library once."""

    def __init__(self, executor: NativeExecutor, head: ForerunnerHead) -> None:
        self._executor, self._layers, pointer = executor, head.context_layers, head.pointer
        self._worth = pointer.matched.detach().float().numpy().copy()
        self._keys = (ctypes.c_void_p * len(self._layers))()
        self._order = native.Pointing(
            len(self._layers), pointer.heads // len(self._layers), pointer.dim, MATCHES, POINTERS
        )
        self._order.keys, self._order.worth = ctypes.addressof(self._keys), self._worth.ctypes.data

    def find(self, slot: int, tokens: Sequence[int], asked: Tensor, size: int) -> Pointers:
        """The best places of one text for what is asked for, [heads, D], each with the `size` tokens after it."""
        text, asked, order = np.array(tokens, dtype=np.int64), asked.float().contiguous(), self._order
        for i, layer in enumerate(self._layers):
            keys = self._executor.context(layer, slot)[0]  # all layers lie alike
            assert keys.shape[1] == len(text) - 1  # the library reads as many
            self._keys[i] = keys.data_ptr()
        order.head_stride, order.place_stride, order.end = keys.stride(0), keys.stride(1), len(text) - 1
        score, place = np.full(POINTERS, NOWHERE, dtype=np.float32), np.zeros(POINTERS, dtype=np.int64)
        order.asked, order.text, order.threads = asked.data_ptr(), text.ctypes.data, torch.get_num_threads()
        order.values, order.places = score.ctypes.data, place.ctypes.data
        found = self._executor.code.point(order)
        after = place[:, None] + 1 + np.arange(size)
        known = (after < len(text)) & (np.arange(POINTERS) < found)[:, None]
        token = np.where(known, text[np.minimum(after, len(text) - 1)], -1)
        return Pointers(torch.from_numpy(score[None]), torch.from_numpy(token[None]))
