"""A file of records that grows question by question and survives a kill.

Beside FILE lies FILE.journal: what is being made, and then one line for each finished question, also for those without
a record. FILE itself is written from it in the order of the questions, whole or not at all, so that a run that was cut
and continued ends with the same file as one that was not. The same command with more questions goes on as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ForedraftError, UsageError
from .record import LabelledText


class Journal:
    """Finished questions by name, each with its records as plain data."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.path = out, out.with_name(f"{out.name}.journal")
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))  # as they will be read back
        self._open()

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def __len__(self) -> int:
        return len(self.found)

    def add(self, name: str, records: Iterable[LabelledText]) -> None:
        """Note a finished question; its line reaches the disk at once."""
        if not self.path.exists():  # not before: a run that fails at once leaves nothing behind
            write_lines(self.path, [json.dumps(self.settings)])
        self.found[name] = [asdict(record) for record in records]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"question": name, "records": self.found[name]}) + "\n")

    def save(self, names: Iterable[str]) -> int:
        """Write the records of these questions, as far as any are finished; returns how many."""
        if not self.found:
            return 0
        lines = [json.dumps(record) for name in names for record in self.found.get(name, ())]
        write_lines(self.out, lines)
        return len(lines)

    def _open(self) -> None:
        if not self.path.exists():
            if self.out.exists():
                raise UsageError(
                    f"{self.out} exists, but no journal beside it says how it was made; name another --out"
                )
            return
        first, *lines = self.path.read_text(encoding="utf-8").split("\n")
        self._compare(first)
        for number, line in enumerate(lines, start=2):
            self._take(number, line, last=number == len(lines) + 1)
        if lines and lines[-1]:  # a line that a kill has cut: whatever comes next must not continue it
            write_lines(self.path, [first, *lines[:-1]])

    def _compare(self, first: str) -> None:
        now = self.settings
        try:
            earlier = json.loads(first)
            other = sorted(k for k in now.keys() | earlier.keys() if now.get(k) != earlier.get(k))
        except (ValueError, AttributeError):
            raise ForedraftError(f"{self.path} is no journal of labels; name another --out") from None
        if other:
            raise UsageError(f"{self.path} was begun with another {', '.join(other)}; name another --out")

    def _take(self, number: int, line: str, last: bool) -> None:
        try:
            if not last:
                entry = json.loads(line)
                self.found[entry["question"]] = entry["records"]
        except (ValueError, KeyError, TypeError):
            raise ForedraftError(f"{self.path}:{number} is damaged; delete the file to begin anew") from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file that is either the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(fresh, path)
