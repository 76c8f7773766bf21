"""From questions to a file of records, one finished question after another.

Beside FILE lies FILE.journal: the settings, then one line for each finished question, also for those without a record.
FILE itself is written from it in the order of the questions, so that a run that was cut and resumed ends with the same
file as one that was not. The same command with more questions goes on as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...jsonl import JsonLines, write_lines
from .mining import Limits, Quest, search
from .program_labels import CheckedLabels, Exercise
from .record import LabelledText
from .searches import Drafter, SearchPool, Target

Tell = Callable[[int, int, str], None]  # questions done, all of them, what is going on
Finished = tuple[str, list[LabelledText]]  # the name of a question and its records


class Journal:
    """Finished questions by name, each with its records as plain data."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, path = out, out.with_name(f"{out.name}.journal")
        if out.exists() and not path.exists():
            raise UsageError(f"{out} exists, but no journal beside it says how it was made; name another --out")
        self._log = JsonLines(path, lambda row: (row["question"], row["records"]), settings)
        self.found: dict[str, list[dict[str, Any]]] = dict(self._log.rows)

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def add(self, name: str, records: Iterable[LabelledText]) -> None:
        """Note a finished question; its line reaches the disk at once."""
        self.found[name] = [asdict(record) for record in records]
        self._log.append({"question": name, "records": self.found[name]})

    def save(self, names: Iterable[str]) -> None:
        """Write the records of these questions, if any are finished."""
        if self.found:
            write_lines(self.out, [record for name in names for record in self.found.get(name, ())])

    def follow(self, names: Sequence[str], finished: Iterable[Finished], tell: Tell, unit: str) -> None:
        """Note questions as they finish, and write the file at the end, also at an early one."""
        done = sum(name in self for name in names)
        try:
            for name, records in finished:
                self.add(name, records)
                done += 1
                tell(done, len(names), unit)
        finally:
            self.save(names)


def make_checked(labels: CheckedLabels, work: Sequence[Exercise], journal: Journal, batch: int, tell: Tell) -> None:
    """Label program-checked problems, `batch` of them at a time."""
    left = [each for each in work if each.name not in journal]
    finished = (each for begin in range(0, len(left), batch) for each in labels.make(left[begin : begin + batch]))
    journal.follow([each.name for each in work], finished, tell, "problems")


def make_mined(
    quests: Sequence[Quest],
    limits: Limits,
    models: tuple[Target, Drafter],
    ends: Collection[int],
    journal: Journal,
    at_once: int,
    tell: Tell,
    seconds: float = inf,
) -> None:
    """Search questions for the mismatches that matter, `at_once` of them side by side; after `seconds` those that are
    being searched end with what they have, and the others stay open."""
    searches = [(each.name, search(each, limits, ends)) for each in quests if each.name not in journal]
    pool = SearchPool(searches, *models, at_once, seconds)
    journal.follow([each.name for each in quests], pool.run(), tell, "questions")
