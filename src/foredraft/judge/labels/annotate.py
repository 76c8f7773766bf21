"""A terminal annotator: shows an answer with numbered tokens and asks which one is the first wrong one.

The answer goes into the file at once, so that a session can end at any time; the next one begins at the first line that
has no label yet. Tokens are those of the model's tokenizer, but the file counts characters (see `annotations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ...models import Tokenizer
from .annotations import Note, read_notes, write_notes
from .token_labels import Spelling

HELP = "number = first wrong token, n = nothing is wrong, e = it ends too early, s = skip, b = back, q = quit"
Input = Callable[[str], str]


class Annotator:
    """One session over a file."""

    def __init__(self, path: Path, tokenizer: Tokenizer, console: Console, read: Input) -> None:
        self.path, self.tokenizer, self.console, self.read = path, tokenizer, console, read
        self.notes = read_notes(path)

    def run(self) -> int:
        """Ask until all lines are labelled, skipped, or the annotator quits; returns how many got a label."""
        marked: set[int] = set()
        open_lines = [i for i, note in enumerate(self.notes) if not note.labelled]
        self.console.print(HELP, style="dim", markup=False, highlight=False)
        at = 0
        while at < len(open_lines):
            number = open_lines[at]
            said = self._ask(self.notes[number], f"{at + 1} of {len(open_lines)}")
            if said == "q":
                break
            if said == "b":
                at = max(0, at - 1)
                continue
            if said != "s":
                marked.add(number)
                write_notes(self.path, self.notes)
            at += 1
        return len(marked)

    def _ask(self, note: Note, where: str) -> str:
        """Show a note and read a command; a label is set on the note."""
        tokens = self.tokenizer.encode(note.answer, add_special=False)
        spelling = Spelling.of(self.tokenizer, tokens, ())
        self.console.print(Panel(Text(note.question), title=where, title_align="left"))
        self.console.print(numbered(spelling))
        said = self._command(len(tokens))
        if said == "n":
            note.mark(None)
        elif said == "e":
            note.mark(len(note.answer))
        elif said.isdecimal():
            note.mark(first_character(spelling, int(said)))
        return said

    def _command(self, count: int) -> str:
        while True:
            try:
                said = self.read("> ").strip().lower()
            except EOFError:
                return "q"
            if said in ("n", "e", "s", "b", "q") or (said.isdecimal() and said.isascii() and int(said) < count):
                return said
            self.console.print(f"{HELP} (tokens 0 to {count - 1})", style="yellow", markup=False, highlight=False)


def numbered(spelling: Spelling) -> Text:
    """The answer with each token's number before it. A token that finishes no character shows as a dot."""
    shown, begin = Text(), 0
    for i, end in enumerate(spelling.done):
        piece = spelling.text[begin:end] or "·"
        shown.append(f" {i} ", style="dim reverse")
        shown.append(piece, style="bold" if i % 2 else "")
        begin = end
    return shown


def first_character(spelling: Spelling, token: int) -> int:
    """The character at which a token begins."""
    return spelling.done[token - 1] if token else 0
