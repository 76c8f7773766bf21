"""Phrases by the token that they followed: what lookahead decoding and Ouroboros collect from verified passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq

Phrase = tuple[int, ...]


class PhrasePool:
    """At most `per_key` phrases of one length after each token, and `most` tokens with any; the oldest go first."""

    def __init__(self, length: int, per_key: int = 20, most: int = 50_000) -> None:
        self.length, self.per_key, self.most = length, per_key, most
        self._phrases: OrderedDict[int, OrderedDict[Phrase, None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._phrases.values()))

    def add(self, key: int, phrase: Seq[int]) -> None:
        """A phrase that is there already becomes the newest; one of another length is not kept."""
        if len(phrase) != self.length:
            return
        known = self._phrases.setdefault(key, OrderedDict())
        known[tuple(phrase)] = None
        known.move_to_end(tuple(phrase))
        if len(known) > self.per_key:
            known.popitem(last=False)
        self._phrases.move_to_end(key)
        if len(self._phrases) > self.most:
            self._phrases.popitem(last=False)

    def newest(self, key: int, count: int) -> list[Phrase]:
        """The last phrases to be added after a token, the newest first."""
        found = list(self._phrases.get(key, ()))
        return found[: -count - 1 : -1] if count > 0 else []

    def replace(self, key: int, old: Phrase, new: Seq[int]) -> None:
        """A phrase that verification has corrected."""
        known = self._phrases.get(key)
        if known is not None and len(new) == self.length:
            known.pop(old, None)
            self.add(key, new)

    def learn(self, tokens: Seq[int]) -> None:
        """Every phrase of a text."""
        for i in range(len(tokens) - self.length):
            self.add(tokens[i], tokens[i + 1 : i + 1 + self.length])
