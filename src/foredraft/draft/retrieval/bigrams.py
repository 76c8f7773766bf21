"""A table of token pairs: how often one token followed another, and which one did so most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from ...errors import UsageError


class Bigrams:
    """Counts of pairs. Beyond `limit` different pairs all counts are halved and those that reach zero are dropped."""

    def __init__(self, limit: int = 500_000) -> None:
        self.limit, self.size = limit, 0  # different pairs
        self._count: dict[int, dict[int, int]] = {}
        self._best: dict[int, int] = {}

    @classmethod
    def load(cls, path: str | Path, vocab_size: int, limit: int = 500_000) -> Bigrams:
        """From a text file with `token next count` on every line."""
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
        return self._best.get(token)

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
