"""The contract of a length rule: how many tokens a sequence drafts, decided once a round from the rounds before it.

A length rule knows sequence ids and counts, no tensors. It is asked before anything is drawn and never sees a draw, so
every exact pair of drafts and rule stays exact (DESIGN invariant 5), and at temperature 0 the text is the same. A rule
that learns from all requests makes lengths depend on what else was served: the distribution of a sampled text does not
change, but under rules whose random numbers are keyed by rounds the text of a seed may.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class LengthRule(Protocol):
    """Says how many tokens a sequence drafts. One object serves one drafter and keeps what it learns by sequence id."""

    def longest(self, id: int, limit: int) -> int:
        """Tokens to draft this round, at most `limit`; 0 = none. Asked once a round, before drafting."""

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        """A verified round: the first `accepted` of `drafted` tokens along a path. Nothing drafted: (0, 0)."""

    def end(self, id: int) -> None:
        """The request is over; forget it. Unknown ids are no error."""


class Unlearned:
    """The verbs of a rule that remembers nothing."""

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        pass

    def end(self, id: int) -> None:
        pass


@dataclass(frozen=True)
class Fixed(Unlearned):
    """The same length every round."""

    length: int = 5

    def longest(self, id: int, limit: int) -> int:
        return min(self.length, limit)


@dataclass
class Heuristic:
    """The schedule of Hugging Face's assisted generation: two more after a perfect round, one less after any other."""

    first: int = 5
    _lengths: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def longest(self, id: int, limit: int) -> int:
        return min(self._lengths.get(id, self.first), limit)

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        if drafted:
            step = 2 if accepted == drafted else -1
            self._lengths[id] = max(1, self._lengths.get(id, self.first) + step)

    def end(self, id: int) -> None:
        self._lengths.pop(id, None)
