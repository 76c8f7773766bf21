"""Levels of a captured forerunner round in eight kernels each, as far as top words go; `ForerunnerStepper` is the
reference, which takes some fifty.

A level's nodes come after those of the level above, so two levels of states are all that is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....core.shapes.base import Vocabulary
from ....kernels.activation import gated
from ....kernels.drafting.corrected_level import Copying, Parents, enter_level, pointed_words
from ....kernels.top_k_search import can_search
from ....models.heads import ForerunnerHead
from ....models.heads.blocks.forerunner import NOWHERE, Pointers
from ....models.layers.gemv_narrow import multiply_and_add, norm_and_multiply

Found = tuple[Tensor, Tensor]  # log-probabilities at temperature 1 and target ids of the top words, [B * w, k] each


def can_fuse(head: ForerunnerHead, rows: Tensor, words: Vocabulary, k: int) -> bool:
    """Whether the kernels can take the levels of blocks [B, size, d] of a head that copies, for the top k words."""
    return head.corrects and k <= len(words.ids) and can_search(rows[:, 0], k)


class FusedLevels:
    """One round."""

    logits: Tensor  # [B * w, words] of the newest level, without what copies add

    def __init__(
        self, head: ForerunnerHead, rows: Tensor, shares: Tensor, pointers: Pointers, words: Vocabulary, k: int
    ) -> None:
        """rows [B, size, d] and their `ForerunnerHead.shares`; k: words that are looked for after every node."""
        self._head, self._rows, self._shares, self._k = head, rows, shares, k
        self._states, self._scores = rows[:, :1].contiguous(), pointers.score[:, None]
        p = head.pointer
        fixed = p.gate, p.level, p.followed, words.ids, words.index, head.config.norm_eps, NOWHERE
        self._copying = Copying(pointers.token, head.norm, *fixed)
        self._first = torch.zeros((len(rows), 1), dtype=torch.int64, device=rows.device)

    def root(self) -> Found:
        return self._search(self._states.flatten(0, 1), None, 0)

    def below(self, token: Tensor, above: Tensor | None, level: int) -> Found:
        """After nodes [B, w], whose parents are columns `above` of the level before; None = its only one."""
        head, part = self._head, self._head.correction
        assert above is not None or token.shape[1] == self._states.shape[1] == 1
        parents = Parents(token.contiguous(), self._first if above is None else above.contiguous())
        read, rows, shares = enter_level(
            self._states, parents, self._rows[:, level], self._shares[:, level],
            head.embedding, part.above_norm, part.eps, head.unit,
        )  # fmt: skip
        inner = gated(multiply_and_add(part.node, read, shares))
        states = multiply_and_add(part.down, inner, rows)
        self._states = states.view(len(token), -1, states.shape[1])
        return self._search(states, parents, level)

    def _search(self, states: Tensor, parents: Parents | None, level: int) -> Found:
        head, batch = self._head, len(self._rows)
        self.logits = norm_and_multiply(head.head, states, head.norm, head.config.norm_eps)
        *found, scores = pointed_words(self.logits, states, self._scores, parents, self._copying, level, self._k)
        self._scores = scores.view(batch, -1, scores.shape[1])
        return found[0], found[1]
