"""`min_tokens` as a grammar: the tokens that end a text are forbidden until so many are written."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

WORD = 32  # bits of a word of the mask


class MinTokens:
    """Grammar and constraint at once: it needs to remember nothing."""

    def __init__(self, count: int, ends: Collection[int]) -> None:
        self._count, self._ends = count, sorted(ends)

    def start(self) -> MinTokens:
        return self

    def fill(self, output: list[int], tokens: list[int], parents: list[int], bits: Tensor) -> None:
        written = [len(output)]  # tokens before each row: the root's, then one more than the parent's
        for parent in parents:
            written.append(written[parent + 1] + 1)
        for row, count in enumerate(written):
            for token in self._ends if count < self._count else ():
                word = int(bits[row, token // WORD]) & 0xFFFFFFFF & ~(1 << token % WORD)
                bits[row, token // WORD] = word if word < 1 << 31 else word - (1 << 32)
