"""A plain round that the device begins before the host knows what the one before has written.

Between two captured rounds the host reads an answer, hands it out and launches again; the device would wait for that.
A captured round of requests without drafts leaves its tokens where it finds its inputs, so it can be replayed at once.
Whether that was right is known when the next step comes: the same requests, each longer by that very token. Some may
have ended meanwhile: their rows are not looked at, and have none in the round after. If somebody has come, or has
another token, the replay is dropped; it has touched nothing but scratch rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...types import Sequence
from .async_copy import AsyncCopy
from .summary import token_of


class Expected(NamedTuple):
    """One request in a round under way."""

    row: int
    length: int  # tokens that it should have by then, the one that is not known yet included


NOBODY = Expected(0, -1)


@dataclass(frozen=True, slots=True)
class Guess:
    """A round under way."""

    key: Hashable
    who: dict[int, Expected]  # by sequence
    before: AsyncCopy  # the summary with the tokens that were not known
    answer: Any

    def rows_of(self, key: Hashable, sequences: Seq[Sequence]) -> list[int] | None:
        """Where these sequences are in it; None where the round is not theirs."""
        if self.key != key:
            return None
        found, lines = [self.who.get(s.id, NOBODY) for s in sequences], self.before.read()
        right = all(
            each.length == len(s.tokens) and token_of(lines[each.row]) == s.tokens[-1]
            for each, s in zip(found, sequences, strict=True)
        )
        return [each.row for each in found] if right else None


class Collected(NamedTuple):
    """A round that was begun early."""

    answer: Any
    rows: list[int]  # of the sequences that asked
    every: list[int]  # of all for whom it was begun


@dataclass(slots=True)
class RunAhead:
    """At most one guess at a time."""

    guess: Guess | None = field(default=None)

    def forget(self) -> None:
        """Drop it: the next step is of another kind."""
        self.guess = None

    def collect(self, key: Hashable, sequences: Seq[Sequence]) -> Collected | None:
        """The round under way, if it is that of these sequences."""
        guess, self.guess = self.guess, None
        rows = None if guess is None else guess.rows_of(key, sequences)
        if guess is None or rows is None:
            return None
        return Collected(guess.answer, rows, [each.row for each in guess.who.values()])
