"""Lookahead decoding (Fu et al. 2024): the target guesses a window of future tokens for itself, pass after pass.

The window has `ngram - 1` rows of guesses, one pass apart, and `window` columns. A cell sees the text, the cells of row
0 up to its own column, and the cells above it in its column, one position later each. That is a tree: row 0 is a chain
and every column hangs below its cell of row 0, so the window is drafted as nodes like any others, on every executor,
and what the target finds right of it is accepted too. A test compares the tree's mask with the window's. The target's
top tokens after the last row become the new last row, and every column with its new token is an n-gram for the pool,
from which the guesses after the pending token are taken. Nothing is drawn: drafts are CHOSEN.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from ...core.rng.keyed import Rng
from ...core.trees.layout import trees
from ...errors import UsageError
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter, Round
from .path_trie import PathTrie
from .phrase_pool import PhrasePool


@dataclass(slots=True)
class _Window:
    """The guesses of one sequence, and the nodes that they became."""

    rows: list[list[int]]  # [ngram - 1][window]
    pool: PhrasePool
    length: int  # tokens of the text that the window comes after
    ends: dict[int, int] = field(default_factory=dict)  # column -> node of its last cell this round


class LookaheadDrafter(Drafter):
    """A window of `window` columns for n-grams of `ngram` tokens, and up to `guesses` of them verified a round."""

    def __init__(
        self, window: int = 5, ngram: int = 4, guesses: int = 5, from_prompt: bool = False, name: str = "lookahead"
    ) -> None:
        if window < 1 or ngram < 2 or guesses < 1:
            raise UsageError("lookahead needs a window and guesses of at least 1, and n-grams of at least 2 tokens")
        self.name, self.window, self.ngram, self.guesses, self.from_prompt = name, window, ngram, guesses, from_prompt
        self.nodes = (window + guesses) * (ngram - 1)
        self.kinds = frozenset({Kind.CHOSEN})
        self.topology = Topology.TREE
        self._windows: dict[int, _Window] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            pool = PhrasePool(self.ngram - 1)
            if self.from_prompt:
                pool.learn(sequence.tokens)
            rows = [[self._filler(sequence, row, i) for i in range(self.window)] for row in range(self.ngram - 1)]
            self._windows[sequence.id] = _Window(rows, pool, len(sequence.tokens))

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._windows.pop(sequence.id, None)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        found = [self._draft(sequence) for sequence in sequences]
        return trees([(trie.tokens, trie.parents) for trie in found])

    def observe(self, round: Round) -> None:
        """The target's top token after the last cell of every column that was verified."""
        for b, sequence in enumerate(round.sequences):
            window = self._windows[sequence.id]
            rows = round.own_rows(b)
            verified = {column: rows[node] for column, node in window.ends.items() if node in rows}
            tops = round.top_tokens(b, list(verified.values()))
            new = dict(zip(verified, tops, strict=True))
            for column, token in new.items():
                cells = [row[column] for row in window.rows]
                window.pool.add(cells[0], [*cells[1:], token])
            last = [new.get(i, self._filler(sequence, i, 0)) for i in range(self.window)]
            window.rows, window.ends = [*window.rows[1:], last], {}

    def _draft(self, sequence: Sequence) -> PathTrie:
        window = self._windows[sequence.id]
        self._follow(window, sequence)
        trie = PathTrie(sequence.budget)
        for phrase in window.pool.newest(sequence.tokens[-1], self.guesses):
            trie.add(phrase)
        above = -1
        for column in range(self.window):
            node = trie.child(above, window.rows[0][column])
            if node is None:
                break
            below = trie.add([row[column] for row in window.rows[1:]], node)
            if len(below) == self.ngram - 2:
                window.ends[column] = below[-1] if below else node
            above = node
        return trie

    def _follow(self, window: _Window, sequence: Sequence) -> None:
        """Every round moves the window on by one token; tokens accepted beyond that push columns out of it."""
        ahead = len(sequence.tokens) - window.length - 1
        window.length = len(sequence.tokens)
        for number, row in enumerate(window.rows):
            if ahead > 0:
                kept = row[ahead:]
                row[:] = kept + [self._filler(sequence, number, i) for i in range(self.window - len(kept))]
        window.ends = {}

    @staticmethod
    def _filler(sequence: Sequence, row: int, column: int) -> int:
        """A first guess where there is none: some token of the text."""
        return sequence.tokens[-1 - (7 * row + 3 * column) % len(sequence.tokens)]
