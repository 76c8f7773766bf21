"""A table of token pairs: how often one token followed another, and which one did so most.

It learns from texts, and may stand on a packed table: the most frequent successor of every token of a vocabulary, two
bytes each, as `scripts/make-bigrams` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError


class Bigrams:
    """Counts of pairs. Beyond `limit` different pairs all counts are halved and those that reach zero are dropped."""

    def __init__(self, limit: int = 500_000, packed: NDArray[Any] | None = None) -> None:
        self.limit, self.size = limit, 0  # different pairs
        self.packed = packed  # [V] successor of tokens that no text has had yet; the token itself = none
        self._count: dict[int, dict[int, int]] = {}
        self._best: dict[int, int] = {}

    def __deepcopy__(self, memo: object) -> Bigrams:
        """Counts of its own; the packed table is never written to and stays shared."""
        copied = Bigrams(self.limit, self.packed)
        copied.size, copied._best = self.size, dict(self._best)
        copied._count = {token: dict(followers) for token, followers in self._count.items()}
        return copied

    @classmethod
    def load(cls, path: str | Path, vocab_size: int, limit: int = 500_000) -> Bigrams:
        """From a packed table (.npy), or a text file with `token next count` on every line."""
        if Path(path).suffix == ".npy":
            return cls(limit, _packed(Path(path), vocab_size))
        table = cls(limit)
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            words = line.split()
            if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
                raise UsageError(f"{path}, line {number}: expected three numbers 'token next count', found {line!r}")
            token, follower, count = map(int, words)
            if max(token, follower) >= vocab_size:
                raise UsageError(f"{path}, line {number}: the vocabulary has {vocab_size} tokens, found {line!r}")
            table.add(token, follower, count)
        return table

    def save(self, path: str | Path) -> None:
        """What `load` reads."""
        Path(path).write_text("".join(f"{a} {b} {n}\n" for a, b, n in self.pairs()), encoding="utf-8")

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """(token, next, count) of every pair."""
        for token, followers in self._count.items():
            for follower, count in followers.items():
                yield token, follower, count

    def after(self, token: int) -> int | None:
        """The token that followed most often; of equal ones, the one that reached its count first."""
        if token in self._best or self.packed is None or token >= len(self.packed):
            return self._best.get(token)
        follower = int(self.packed[token])
        return None if follower == token else follower

    def pack(self, vocab_size: int) -> NDArray[Any]:
        """[V] the most frequent successor of every token, its own number where there is none."""
        table: NDArray[Any] = np.arange(vocab_size, dtype=np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        for token, follower in self._best.items():
            table[token] = follower
        return table

    def learn(self, tokens: Iterable[int]) -> None:
        """Count the pairs of a piece of text."""
        for token, follower in pairwise(tokens):
            self.add(token, follower)

    def add(self, token: int, follower: int, count: int = 1) -> None:
        if count <= 0:
            return
        followers = self._count.setdefault(token, {})
        self.size += follower not in followers
        followers[follower] = followers.get(follower, 0) + count
        if followers[follower] > followers[self._best.setdefault(token, follower)]:
            self._best[token] = follower
        if self.size > self.limit:
            self._halve()

    def _halve(self) -> None:
        halved = {a: {b: n // 2 for b, n in followers.items() if n > 1} for a, followers in self._count.items()}
        self._count = {token: followers for token, followers in halved.items() if followers}
        self._best = {token: max(followers, key=followers.__getitem__) for token, followers in self._count.items()}
        self.size = sum(map(len, self._count.values()))


def _packed(path: Path, vocab_size: int) -> NDArray[Any]:
    try:
        table: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no packed table of pairs: {error}") from None
    if table.ndim != 1 or table.dtype.kind != "u" or len(table) > vocab_size or (table >= vocab_size).any():
        raise UsageError(f"{path} is no table of pairs for a vocabulary of {vocab_size} tokens")
    return table
