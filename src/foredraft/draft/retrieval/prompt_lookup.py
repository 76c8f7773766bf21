"""Prompt lookup: copy what followed the last n tokens at their latest earlier occurrence (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ...types import Sequence
from ..lookup import Looked, Lookup

LONGEST_MATCH = 32  # tokens; what matches longer is no more certain


class PromptLookup(Lookup):
    """Tries the longest n-gram first; the most recent occurrence wins. A miss drafts nothing."""

    def __init__(self, max_nodes: int = 10, max_ngram: int = 3, name: str = "prompt-lookup") -> None:
        self.name, self.nodes, self.max_ngram = name, max_nodes, max_ngram
        # Sequence id -> (tokens indexed so far, n-gram -> position after its latest occurrence).
        self._seen: dict[int, tuple[int, dict[tuple[int, ...], int]]] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._seen[sequence.id] = (0, {})

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._seen.pop(sequence.id, None)

    def look_up(self, sequence: Sequence) -> Looked:
        copy, n = self._look(sequence, sequence.tokens, sequence.budget.chain)
        # An estimate without statistics: a match of n tokens continues correctly n times in n + 1.
        return copy, [(n / (n + 1)) ** (i + 1) for i in range(len(copy))]

    def continue_from(self, sequences: Seq[Sequence], drafted: Seq[Seq[int]], limits: Seq[int]) -> list[list[int]]:
        """Looked up in the committed text only; see `Continuing`."""
        texts = [[*s.tokens, *ahead] for s, ahead in zip(sequences, drafted, strict=True)]
        return [self._look(*each)[0] for each in zip(sequences, texts, limits, strict=True)]

    def _look(self, sequence: Sequence, text: list[int], limit: int) -> tuple[list[int], int]:
        """What to copy, and how many tokens matched before it."""
        index = self._index(sequence)
        for n in range(min(self.max_ngram, len(text)), 0, -1):
            after = index.get(tuple(text[-n:]))
            if after is not None:
                return text[after : after + limit], n if n < self.max_ngram else matched(text, after, n)
        return [], 0

    def _index(self, sequence: Sequence) -> dict[tuple[int, ...], int]:
        tokens = sequence.tokens
        done, index = self._seen[sequence.id]
        # The n-grams that end at the last token are the query itself and wait for the next round.
        for end in range(done + 1, len(tokens)):
            for n in range(1, min(self.max_ngram, end) + 1):
                index[tuple(tokens[end - n : end])] = end
        self._seen[sequence.id] = (max(done, len(tokens) - 1), index)
        return index


def matched(text: list[int], after: int, known: int) -> int:
    """Tokens at the end of a text that also stand before a place, of which so many are known to."""
    n, end = known, len(text)
    while n < min(LONGEST_MATCH, after) and text[after - n - 1] == text[end - n - 1]:
        n += 1
    return n
