"""A file of lines that survives a kill: the settings of a run first, then one line for each thing found.

Runs under other settings begin the file anew, or are refused where what was found took long to find. It knows nothing
of what the lines say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import ForedraftError, UsageError


class Lines:
    """JSON lines, each on the disk as soon as it is added. A run that finds nothing leaves no file behind."""

    def __init__(self, path: Path, settings: Mapping[str, Any], anew: bool = True) -> None:
        """`anew`: whether a file of other settings is overwritten; else it is an error."""
        self.path, self.found = path, list[dict[str, Any]]()
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))  # as they will be read back
        self._begun = path.exists() and self._read(anew)

    def add(self, line: dict[str, Any]) -> None:
        if not self._begun:
            write_lines(self.path, [json.dumps(self.settings)])
            self._begun = True
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.found.append(line)

    def _read(self, anew: bool) -> bool:
        """Whether the file goes on; else the first line that is added overwrites it."""
        first, *lines = self.path.read_text(encoding="utf-8").split("\n")
        if not self._fits(first, anew):
            return False
        for number, line in enumerate(lines[:-1], start=2):
            try:
                self.found.append(json.loads(line))
            except ValueError:
                raise ForedraftError(f"{self.path}:{number} is damaged; delete the file to begin anew") from None
        if lines and lines[-1]:  # a line that a kill has cut: whatever comes next must not continue it
            write_lines(self.path, [first, *lines[:-1]])
        return bool(lines)

    def _fits(self, first: str, anew: bool) -> bool:
        now = self.settings
        try:
            earlier = json.loads(first)
            other = sorted(k for k in now.keys() | earlier.keys() if now.get(k) != earlier.get(k))
        except (ValueError, AttributeError):
            if anew:
                return False
            raise ForedraftError(f"{self.path} is no journal of labels; name another --out") from None
        if other and not anew:
            raise UsageError(f"{self.path} was begun with another {', '.join(other)}; name another --out")
        return not other


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file that is either the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(fresh, path)
