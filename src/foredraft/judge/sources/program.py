"""A program as a source: a function of the user's that finds the first wrong character of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..labels.annotations import Note
from ..problems.checkers import own_function
from .locate import UNSURE, Verdict


@dataclass(frozen=True, slots=True)
class Program:
    """`find(question, answer)`: a character, None or -1 = nothing is wrong, False = it cannot tell."""

    find: Callable[[str, str], Any]
    name: str = "program"

    def locate(self, notes: Sequence[Note]) -> Iterator[tuple[Note, Verdict]]:
        for note in notes:
            said = self.find(note.question, note.answer)
            whole = isinstance(said, int) and not isinstance(said, bool)
            sure = said is None or (whole and -1 <= said <= len(note.answer))
            yield note, Verdict(None if said == -1 else said) if sure else UNSURE


def program_source(spelled: str) -> Program:
    return Program(own_function(spelled, "--program"))
