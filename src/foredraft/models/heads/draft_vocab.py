"""The words that a head drafts with: the most frequent ones, and those of the texts at hand.

A head's output rows are its target's, so any words will do without training. Reading the rows of a large draft
vocabulary takes longer than the head's own layer; a text, on the other hand, keeps to its subject, and so a few
thousand frequent words with those that the text has used already leave less out than four times as many that are always
the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain, takewhile

import torch
from torch import Tensor, nn

from ...core.shapes.step import Vocabulary
from .. import native
from ..layers.linear import TiledLinear

ROOM = 1024  # words that the texts at hand may add: those of several long prompts


class DraftVocab(TiledLinear):
    """Output rows that change with the texts: features [T, d] -> [T, columns], in tiles of 16 columns.

    What it says of a word depends on other texts that run at the same time: for drafts that are chosen, whose rule
    draws every token from the target's distribution alone.
    """

    def __init__(self, rows: TiledLinear, ids: Tensor, count: int) -> None:
        """`rows`: the target's; `ids`: a head's draft vocabulary, of which the first `count` always stay."""
        nn.Module.__init__(self)
        self.code, self.wide = rows.code, rows.wide
        self._all, self._all_bias = rows.tiles, rows.bias
        self._fixed = rounded(count, len(ids))
        first, self._spare = ids[: self._fixed], ids[self._fixed :].tolist()
        self._usual = frozenset(first.tolist())
        roomy = torch.cat((first, first[:1].expand(ROOM)))  # those that stay, and room
        self._whole = self._all.chosen(roomy).rounding()
        self._ids = torch.cat((first, first.new_zeros(ROOM)))
        self._index = torch.full((self._all.columns,), -1, dtype=torch.int64)
        self._index[first] = torch.arange(self._fixed)
        self._added: list[int] = []
        self._users: Counter[int] = Counter()  # by word: sequences that have used it
        self._used: dict[int, set[int]] = {}  # by sequence
        self._read: dict[int, int] = {}  # tokens of a sequence that were looked at
        self._show(self._fixed)

    @property
    def vocabulary(self) -> Vocabulary:
        """Its words at the moment; what `follow` and `forget` change is seen by those who have it."""
        return Vocabulary(self._ids[: self.tiles.columns], self._index)

    def follow(self, sequence: int, tokens: list[int]) -> None:
        """Take up the words of a text that has grown since it was seen last."""
        used = self._used.setdefault(sequence, set())
        fresh = set(tokens[self._read.get(sequence, 0) :]) - self._usual - used
        self._read[sequence] = len(tokens)
        if fresh:
            used |= fresh
            self._users.update(fresh)
            self._hold([*self._added, *sorted(fresh.difference(self._added))])

    def forget(self, sequence: int) -> None:
        """A text has ended: its words go, but for those that others have used, and make room for what had none."""
        self._read.pop(sequence, None)
        self._users -= Counter(self._used.pop(sequence, ()))
        still = [word for word in self._added if word in self._users]
        if len(still) < len(self._added):
            self._hold([*still, *sorted(self._users.keys() - set(still))])

    def _hold(self, words: list[int]) -> None:
        """Put these tokens after those that stay, as many as there is room for."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._added, words, strict=False)))
        self._added = words[:ROOM]
        begin = same // native.COLUMNS * native.COLUMNS  # blocks before it are as they were
        self._write(self._fixed + begin, [*self._added, *self._filling(-len(self._added) % native.COLUMNS)][begin:])

    def _filling(self, count: int) -> list[int]:
        """The most frequent words that are not here, for the rest of a block."""
        found: dict[int, None] = {}
        for word in chain(self._spare, range(self._all.columns)):
            if len(found) == count:
                break
            if word not in self._usual and word not in self._users:
                found[word] = None
        return list(found)

    def _write(self, begin: int, words: list[int]) -> None:
        end, ids = begin + len(words), torch.tensor(words, dtype=torch.int64)
        self._index[self._ids[begin : self.tiles.columns]] = -1
        if words:
            part, blocks = self._all.chosen(ids).rounding(), slice(begin // native.COLUMNS, end // native.COLUMNS)
            self._whole.codes[blocks], self._whole.scales[blocks] = part.codes, part.scales
            self._ids[begin:end], self._index[ids] = ids, torch.arange(begin, end)
        self._show(end)

    def _show(self, columns: int) -> None:
        blocks, whole = columns // native.COLUMNS, self._whole
        self.tiles = replace(whole, columns=columns, codes=whole.codes[:blocks], scales=whole.scales[:blocks])
        self.struct = self.tiles.struct
        self.bias = None if self._all_bias is None else self._all_bias[self._ids[:columns]]


def by_frequency(ids: Tensor) -> bool:
    """Whether a draft vocabulary begins with its most frequent words; heads of earlier versions have it ascending."""
    return bool((ids[1:] < ids[:-1]).any())


def rounded(count: int, most: int) -> int:
    """A number of words as whole blocks."""
    return min(-(-max(count, 1) // native.COLUMNS) * native.COLUMNS, most)
