"""Your own file of labels: JSON lines with `question`, `answer` and `first_wrong`.

`first_wrong` is the index of the first wrong character in the answer, counted from 0, so that the file fits any
tokenizer; the answer's length means that it stops too early; null or -1 means that all of it is right. A line with
`"unit": "token"` counts tokens of the target's tokenizer instead. `domain` and `group` are optional. Lines without
`first_wrong` are still to be annotated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ForedraftError
from ...jsonl import write_lines
from ...models import Tokenizer
from .record import LabelledText, group_of
from .token_labels import Spelling, ask, closing_token, spell

UNITS = ("character", "letter", "token")  # "letter" is the old name of a character


@dataclass(slots=True)
class Note:
    """One line of the file; `raw` keeps whatever else stands in it."""

    raw: dict[str, Any]

    @property
    def question(self) -> str:
        return str(self.raw["question"])

    @property
    def answer(self) -> str:
        return str(self.raw["answer"])

    @property
    def labelled(self) -> bool:
        return "first_wrong" in self.raw

    @property
    def first_wrong(self) -> int | None:
        """None = all of it is right."""
        value = self.raw["first_wrong"]
        return None if value in (None, -1) else int(value)

    @property
    def by_token(self) -> bool:
        return self.raw.get("unit") == "token"

    def mark(self, character: int | None) -> None:
        """Set the first wrong character."""
        self.raw["first_wrong"] = character
        self.raw.pop("unit", None)

    def check(self) -> str:
        """What is wrong about the line; "" = nothing."""
        if not all(isinstance(self.raw.get(key), str) for key in ("question", "answer")):
            return "needs texts `question` and `answer`"
        if self.raw.get("unit", "letter") not in UNITS:
            return f"has a unit that is none of {', '.join(UNITS)}"
        value = self.raw.get("first_wrong")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < -1):
            return "needs a whole number or null as `first_wrong`"
        if value is not None and not self.by_token and value > len(self.answer):
            return f"names character {value} of {len(self.answer)}"
        return ""


def read_notes(path: Path) -> list[Note]:
    """All lines of a file, annotated or not."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ForedraftError(f"{path} cannot be read as text: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except ValueError as error:
            raise ForedraftError(f"{path}:{number} is no JSON: {error}") from None
        note = Note(raw if isinstance(raw, dict) else {})
        if trouble := note.check():
            raise ForedraftError(f"{path}:{number} {trouble}")
        found.append(note)
    return found


def write_notes(path: Path, notes: Sequence[Note]) -> None:
    """Replace the file."""
    write_lines(path, [note.raw for note in notes])


def records_of(
    notes: Sequence[Note], tokenizer: Tokenizer, ends: frozenset[int], domain: str
) -> Iterator[LabelledText]:
    """The annotated lines as records; answers to one question share a group."""
    closing = closing_token(tokenizer, ends)
    for note in notes:
        if note.labelled:
            tokens = spell(tokenizer, note.answer, closing)
            where = str(note.raw.get("domain", domain))
            group = str(note.raw.get("group", group_of(note.question)))
            labels = _labels(note, tokenizer, tokens, ends)
            yield LabelledText(where, group, tuple(ask(tokenizer, note.question)), tuple(tokens), labels, "file")


def _labels(note: Note, tokenizer: Tokenizer, tokens: list[int], ends: frozenset[int]) -> tuple[int, ...]:
    first = note.first_wrong
    if note.by_token and first is not None:
        if first >= len(tokens):
            raise ForedraftError(f"an answer has {len(tokens)} tokens, but token {first} is called wrong")
        return LabelledText.until_error("", note.question[:40], (), tokens, first, "file").labels
    spelling = Spelling.of(tokenizer, tokens, ends)
    return spelling.labels(len(note.answer) if first is None else first, first is None)
