"""What a forerunner's pointers make of a level's top words, in one call of the library.

`Pointer.mixed` is the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...models import native
from ...models.heads.blocks.forerunner import POINTERS, Pointer

Numbers = NDArray[Any]
Found = tuple[Numbers, Numbers]  # log-probabilities and ids of the top words, [B, w, k] each
assert POINTERS <= native.MOST  # the library keeps no more


class CopiedWords:
    """A head's pointer in numpy, once for all rounds."""

    def __init__(self, code: native.Compiled, pointer: Pointer) -> None:
        self._code, self._order = code, native.Copying(hidden=len(pointer.gate))
        self._gate, self._level, self._followed = (
            part.detach().float().numpy().copy() for part in (pointer.gate, pointer.level, pointer.followed)
        )
        self._order.gate = self._gate.ctypes.data

    def follow(self, scores: Numbers, token: Numbers, drafted: Numbers, level: int) -> Numbers:
        """Scores [B, w, M] after `drafted` [B, w], where pointers foresaw the tokens [B, M]."""
        left, kept = self._followed[level]
        return scores + np.where(token[:, None] == drafted[:, :, None], kept, left)

    def mix(
        self, found: Found, of: tuple[Tensor, Tensor], index: Tensor, scores: Numbers, tokens: Numbers, level: int
    ) -> None:
        """Change the top words of a level's nodes, [B, w, k]: their log-probabilities, from the best on, and ids.

        of: the nodes' logits [N, V] and features [N, d]; index: columns of ids in the logits; pointers' scores
        [B, w, M] and tokens [B, M, length].
        """
        order, (values, ids), (logits, features), token = self._order, found, of, tokens[:, :, level]
        scores = np.ascontiguousarray(scores, dtype=np.float32)
        order.rows, order.width, order.top = len(logits), *values.shape[1:]
        order.pointers, order.level = token.shape[1], self._level[level]
        order.logits, order.words, order.features = logits.data_ptr(), logits.stride(0), features.data_ptr()
        order.index, order.scores, order.token = index.data_ptr(), scores.ctypes.data, token.ctypes.data
        order.text_stride, order.pointer_stride = (stride // token.itemsize for stride in token.strides)
        order.values, order.ids = values.ctypes.data, ids.ctypes.data
        self._code.copy(order)
