"""What a forerunner's pointers make of a level's top words, in one call of the library.

`Pointer.mixed` is the reference.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...models import native
from ...models.heads.blocks.forerunner import POINTERS, Pointer, Pointers

Numbers = NDArray[Any]
Found = tuple[Numbers, Numbers]  # log-probabilities and ids of the top words, [B, w, k] each
NEGLIGIBLE = -9.0  # pointers with less, a ten-thousandth of the words' probability, are not worth following
assert POINTERS <= native.MOST  # the library keeps no more


class CopiedWords:
    """A head's pointer in numpy, once for all rounds."""

    def __init__(self, code: native.Compiled, pointer: Pointer) -> None:
        self.code = code
        self.gate, self.level, self.followed = (
            part.detach().float().numpy().copy() for part in (pointer.gate, pointer.level, pointer.followed)
        )

    def of(self, pointers: Pointers) -> Copies | None:
        """The copies of a round; None where no pointer is worth following."""
        score, token = pointers.score.numpy(), pointers.token.numpy()
        loud = (score > NEGLIGIBLE).any(axis=0)
        if not loud.any():
            return None
        return Copies(self, np.ascontiguousarray(score[:, None, loud]), np.ascontiguousarray(token[:, loud]))


class Copies:
    """Those of one round: pointers' scores [B, w, M] after the newest nodes, and their tokens [B, M, length]."""

    def __init__(self, words: CopiedWords, scores: Numbers, tokens: Numbers) -> None:
        self._words, self._scores, self._tokens = words, scores, tokens
        self._order = native.Copying(hidden=len(words.gate))
        self._order.gate = words.gate.ctypes.data

    @property
    def count(self) -> int:
        """Pointers."""
        return int(self._scores.shape[2])

    def follow(self, above: Numbers, drafted: Numbers, level: int) -> None:
        """Go on to nodes [B, w] whose tokens were `drafted` below columns `above` of the level before."""
        left, kept = self._words.followed[level]
        foreseen, who = self._tokens[:, :, level - 1], np.arange(len(above))[:, None]
        gained = np.where(foreseen[:, None] == drafted[:, :, None], kept, left)
        self._scores = np.ascontiguousarray(self._scores[who, above] + gained, dtype=np.float32)

    def mix(self, found: Found, of: tuple[Tensor, Tensor], index: Tensor, level: int) -> None:
        """Change the top words of a level's nodes, [B, w, k]: their log-probabilities, from the best on, and ids.

        of: the nodes' logits [N, V] and features [N, d]; index: columns of ids in the logits.
        """
        self.ask(found, of, index, level)
        self._words.code.copy(self._order)

    def ask(self, found: Found, of: tuple[Tensor, Tensor], index: Tensor, level: int) -> None:
        """Describe that."""
        order, (values, ids), (logits, features), token = self._order, found, of, self._tokens[:, :, level]
        order.rows, order.width, order.top = len(logits), *values.shape[1:]
        order.pointers, order.level = token.shape[1], self._words.level[level]
        order.logits, order.words, order.features = logits.data_ptr(), logits.stride(0), features.data_ptr()
        order.index, order.scores, order.token = index.data_ptr(), self._scores.ctypes.data, token.ctypes.data
        order.text_stride, order.pointer_stride = (stride // token.itemsize for stride in token.strides)
        order.values, order.ids = values.ctypes.data, ids.ctypes.data

    def enter(self, order: native.GreedyChain | native.ValueTree) -> None:
        """Have the library go on from what was described."""
        order.copying, order.scores = ctypes.addressof(self._order), self._scores.ctypes.data
        order.level, order.followed = self._words.level.ctypes.data, self._words.followed.ctypes.data
