"""A plain round that the device begins before the host knows what the one before has written.

Between two captured rounds the host reads an answer, hands it out and launches again; the device would wait for that.
A captured round of requests without drafts leaves its tokens where it finds its inputs, so it can be replayed at once.
Whether that was right is known when the next step comes: the same requests, each longer by that very token. If not,
the replay is dropped; it has touched nothing but scratch rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from ...draft.neural.pipelined import MOST
from ...runtime.cuda.graphs import GraphCache
from ...types import Sequence
from .async_copy import AsyncCopy
from .summary import token_of


@dataclass(frozen=True, slots=True)
class Guess:
    """A round under way."""

    key: Hashable
    who: list[int]  # sequences
    lengths: list[int]  # tokens that each is expected to have, the one that is not known yet included
    before: AsyncCopy  # the summary with those tokens
    answer: Any

    def holds(self, key: Hashable, sequences: Seq[Sequence]) -> bool:
        if (
            self.key != key
            or self.who != [s.id for s in sequences]
            or self.lengths != [len(s.tokens) for s in sequences]
        ):
            return False
        return all(token_of(line) == s.tokens[-1] for line, s in zip(self.before.read(), sequences, strict=False))


@dataclass(slots=True)
class RunAhead:
    """At most one guess at a time."""

    guess: Guess | None = field(default=None)

    def begin(self, graphs: GraphCache, key: Hashable, sequences: Seq[Sequence], before: AsyncCopy, most: int) -> None:
        """Replay a plain round, if all of its requests go on as far as is known; most: tokens of a text."""
        go_on = all(s.room > 1 and len(s.tokens) + 1 < most for s in sequences)
        if go_on and len(sequences) <= MOST and graphs.holds(key):
            lengths = [len(s.tokens) + 1 for s in sequences]
            self.guess = Guess(key, [s.id for s in sequences], lengths, before, graphs.replay(key))

    def forget(self) -> None:
        """Drop it: the next step is of another kind."""
        self.guess = None

    def collect(self, key: Hashable, sequences: Seq[Sequence]) -> Any | None:
        """The answer of the round under way, if it is this one."""
        guess, self.guess = self.guess, None
        return guess.answer if guess is not None and guess.holds(key, sequences) else None
