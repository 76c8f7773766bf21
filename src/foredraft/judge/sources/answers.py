"""Answers to label: several models or temperatures answer the questions of a task, and its checker marks them.

Of every question as many right answers are kept as wrong ones, and one more: pairs teach a judge most, and many right
answers are alike. What is right has no error; what is wrong waits for a source that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from ...errors import UsageError
from ...jsonl import JsonLines, write_lines
from ..labels.program_labels import Writer
from ..problems.problem import Asked

CHECKED_BY = ("answer", "tests", "stem", "choices", "check")  # what checkers need of a line
Text = Callable[[Sequence[int]], str]
Prompt = Callable[[str], list[int]]


def sampled_answers(
    problems: Sequence[Asked],
    writers: dict[str, Writer],
    temperatures: Sequence[float],
    prompt: Prompt,
    text: Text,
    seed: int = 0,
) -> Iterable[list[dict[str, Any]]]:
    """For each problem the lines of a file of answers (`labels.annotations`): right ones are labelled already."""
    for problem in problems:
        asked = prompt(problem.question)
        found: dict[str, dict[str, Any]] = {}
        own = seed + crc32(problem.question.encode())  # not its number: a run that goes on begins to count again
        for name, write in writers.items():
            seeds = [own + i for i in range(len(temperatures))]
            for heat, ids in zip(temperatures, write([asked] * len(seeds), temperatures, seeds), strict=True):
                said = text(ids)
                found.setdefault(said, line(problem, said, f"{name}@{heat:g}"))
        yield paired(list(found.values()))


class AnswerFile:
    """Answers on disk, question by question, so that a run that was cut goes on: FILE.journal says how far it came."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, journal = path, path.with_name(f"{path.name}.journal")
        if path.exists() and not journal.exists():
            raise UsageError(f"{path} exists, but no journal beside it says how it was made; name another --out")
        self._log = JsonLines(journal, list, settings)
        self.rows: list[list[dict[str, Any]]] = list(self._log.rows)

    @property
    def done(self) -> int:
        return len(self.rows)

    def fill(
        self, made: Iterable[list[dict[str, Any]]], total: int, tell: Callable[[int, int], None]
    ) -> dict[str, Any]:
        """Note questions as they finish; the file is written at the end, also at an early one."""
        try:
            for rows in made:
                self.rows.append(self._log.append(rows))
                tell(len(self.rows), total)
        finally:
            if not self.path.exists() or self.rows:
                write_lines(self.path, [row for rows in self.rows for row in rows])
        every = [row for rows in self.rows for row in rows]
        right = sum(row["right"] for row in every)
        return {"answers": len(every), "questions": len(self.rows), "right": right, "out": str(self.path)}


def line(problem: Asked, answer: str, writer: str) -> dict[str, Any]:
    right = problem.solved(answer)
    row = {"question": problem.question, "answer": answer, "domain": problem.family, "writer": writer, "right": right}
    asked = {name: value for name, value in getattr(problem, "row", {}).items() if name in CHECKED_BY}
    row |= {"asked": asked} | ({"reference": asked["answer"]} if "answer" in asked else {})
    return row | ({"first_wrong": None, "by": "checker"} if right else {})


def paired(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All wrong answers, and as many right ones, and one more."""
    wrong = [row for row in rows if not row["right"]]
    return wrong + [row for row in rows if row["right"]][: len(wrong) + 1]
