"""Monte-Carlo continuation: the first wrong token is the one after which nobody finds the right answer any more.

From a prefix of the answer the target goes on several times by itself; the share of continuations that end right says
what the prefix is worth. An error is where that worth falls from above to below a level: found by bisection, so an
answer of n tokens costs about log2 n rounds of continuations. Right answers have no error; an answer whose very
beginning is worth nothing tells nothing (the question is too hard for the target).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..labels.annotations import Note
from .locate import UNSURE, Verdict

# (question, beginnings of an answer as tokens) -> for each of them the share of continuations that end right
Worth = Callable[[Note, Sequence[Sequence[int]]], list[float]]


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """`encode` spells an answer, `begin` gives the character at which a token begins, `solved` marks whole answers."""

    worth: Worth
    encode: Callable[[str], list[int]]
    begin: Callable[[str, int], int]
    solved: Callable[[Note], bool]
    level: float = 0.2  # of the worth; below it a prefix is lost
    name: str = "montecarlo"

    def locate(self, notes: Sequence[Note]) -> Iterator[tuple[Note, Verdict]]:
        for note in notes:
            yield note, self.first_wrong(note)

    def first_wrong(self, note: Note) -> Verdict:
        """Bisection keeps: the first `low` tokens are worth something, the first `high` are not."""
        if self.solved(note):
            return Verdict(None)
        tokens = self.encode(note.answer)
        empty, whole = self.worth(note, [[], tokens])
        if empty < self.level:
            return UNSURE
        if whole >= self.level:  # it stopped too early: the target would still get it right
            return Verdict(len(note.answer))
        low, high = 0, len(tokens)
        while high - low > 1:
            middle = (low + high) // 2
            (here,) = self.worth(note, [tokens[:middle]])
            low, high = (middle, high) if here >= self.level else (low, middle)
        return Verdict(self.begin(note.answer, high - 1))
