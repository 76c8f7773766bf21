"""One labelled text: the record that every source of labels writes and that judges learn from.

Labels belong to the answer's tokens: RIGHT, WRONG, or UNCOUNTED (behind the first error nobody can tell any more; where
drafter and target agree there is nothing to judge). Records lie in JSON lines, one text a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import ForedraftError

RIGHT, WRONG, UNCOUNTED = 1, 0, -1


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


def write_records(path: Path, records: Iterable[LabelledText]) -> None:
    """Append records to a file."""
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(asdict(record)) + "\n")


def read_records(path: Path) -> Iterator[LabelledText]:
    """The records of a file; a last line that was cut off by a kill is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            yield LabelledText(
                raw["domain"], raw["group"], tuple(raw["prompt"]), tuple(raw["answer"]), tuple(raw["labels"]),
                raw["source"],
            )  # fmt: skip
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                return
            raise ForedraftError(
                f"{path}:{number} is no labelled text; make the file with 'foredraft judge mine'"
            ) from None
