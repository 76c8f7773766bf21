"""What arms have answered so far, on disk, so that an evaluation that was cut goes on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...types import Reason
from ..labels.lines import Lines


@dataclass(frozen=True, slots=True)
class Answer:
    """What one arm wrote to one problem."""

    solved: bool
    prompt: list[int]
    output: list[int]
    reasons: list[Reason]
    steps: int  # passes of the target
    drafted: int
    accepted: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Answer:
        return cls(**(raw | {"reasons": [Reason(reason) for reason in raw["reasons"]]}))


class Transcript:
    """Answers and seconds by arm and first problem."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.lines = Lines(path, settings)
        self.found = {(line["who"], line["first"]): line for line in self.lines.found}

    def get(self, who: str, first: int) -> tuple[list[Answer], float] | None:
        line = self.found.get((who, first))
        return None if line is None else ([Answer.from_json(raw) for raw in line["answers"]], line["seconds"])

    def add(self, who: str, first: int, answers: Sequence[Answer], seconds: float) -> None:
        line = {"who": who, "first": first, "seconds": seconds, "answers": [asdict(answer) for answer in answers]}
        self.lines.add(line)
        self.found[who, first] = line
