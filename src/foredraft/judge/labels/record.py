"""One labelled text: the record that every source of labels writes and that judges learn from.

Labels belong to the answer's tokens: RIGHT, WRONG, or UNCOUNTED (after the first error nobody can tell any more; where
drafter and target agree there is nothing to judge). Records lie in JSON lines, one text a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import ForedraftError
from ...jsonl import read_lines, write_lines

RIGHT, WRONG, UNCOUNTED = 1, 0, -1
MINED = "mined"  # source of labels that compare drafter and target, and are about their mismatches alone


def group_of(question: str) -> str:
    """The group of a question: the same wherever its labels come from, so that no split has it on both sides."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LabelledText:
    """An answer to a prompt with a label for each of its tokens, in the ids of the target's tokenizer."""

    domain: str  # a family of problems, a data set
    group: str  # texts of one question share it: splits go by group, never by token
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    labels: tuple[int, ...]
    source: str  # "checked", "mined" or "file"

    def __post_init__(self) -> None:
        if len(self.answer) != len(self.labels):
            raise ForedraftError(f"record {self.group}: {len(self.labels)} labels for {len(self.answer)} tokens")

    @classmethod
    def until_error(cls, domain: str, group: str, prompt: Iterable[int], answer: Iterable[int], first: int,
                    source: str) -> LabelledText:  # fmt: skip
        """Right up to token `first`, which is wrong; the rest is not counted. `first` = -1: all of it is right."""
        tokens = tuple(answer)
        labels = [RIGHT] * len(tokens)
        if first >= 0:
            labels[first:] = [WRONG] + [UNCOUNTED] * (len(tokens) - first - 1)
        return cls(domain, group, tuple(prompt), tokens, tuple(labels), source)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LabelledText:
        prompt, answer, labels = (tuple(raw[name]) for name in ("prompt", "answer", "labels"))
        return cls(raw["domain"], raw["group"], prompt, answer, labels, raw["source"])


def write_records(path: Path, records: Iterable[LabelledText]) -> None:
    """Replace a file by these records."""
    write_lines(path, map(asdict, records))


def read_records(path: Path) -> list[LabelledText]:
    """The records of a file; a last line that was cut off by a kill is left out."""
    return read_lines(path, LabelledText.from_json, "is no labelled text; make the file with 'foredraft judge mine'")
