"""A file of records that grows question by question and survives a kill.

Beside FILE lies FILE.journal: what is being made, and then one line for each finished question, also for those without
a record. FILE itself is written from it in the order of the questions, whole or not at all, so that a run that was cut
and continued ends with the same file as one that was not. The same command with more questions goes on as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import ForedraftError, UsageError
from .lines import Lines, write_lines
from .record import LabelledText


class Journal:
    """Finished questions by name, each with its records as plain data."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.path = out, out.with_name(f"{out.name}.journal")
        if out.exists() and not self.path.exists():
            raise UsageError(f"{out} exists, but no journal beside it says how it was made; name another --out")
        self._lines = Lines(self.path, settings, anew=False)
        try:
            self.found = {line["question"]: line["records"] for line in self._lines.found}
        except (KeyError, TypeError):
            raise ForedraftError(f"{self.path} is damaged; delete the file to begin anew") from None

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def __len__(self) -> int:
        return len(self.found)

    def add(self, name: str, records: Iterable[LabelledText]) -> None:
        """Note a finished question; its line reaches the disk at once."""
        self.found[name] = [asdict(record) for record in records]
        self._lines.add({"question": name, "records": self.found[name]})

    def save(self, names: Iterable[str]) -> int:
        """Write the records of these questions, as far as any are finished; returns how many."""
        if not self.found:
            return 0
        lines = [json.dumps(record) for name in names for record in self.found.get(name, ())]
        write_lines(self.out, lines)
        return len(lines)
