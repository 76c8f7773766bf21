"""Reads the files of a data folder: JSON lines, JSON lists and plain text, gzipped or not. Knows no task."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ForedraftError, UsageError

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file's text and the hash of its bytes."""

    name: str
    text: str
    sha256: str

    def rows(self) -> list[Row]:
        """The objects in it. JSON lines are split at \\n alone: other line breaks may stand inside of a string."""
        try:
            if self.name.removesuffix(".gz").endswith(".json"):
                return list(json.loads(self.text))
            return [json.loads(line) for line in self.text.split("\n") if line.strip()]
        except ValueError as error:
            raise ForedraftError(f"{self.name} cannot be read as JSON: {error}") from None


def read(folder: Path, name: str) -> DataFile:
    """The file `name` below the folder, or `name`.gz."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return read_path(path)
    raise UsageError(f"{folder} holds no {name} (or {name}.gz); see docs/bench.md for the folder's layout")


def read_path(path: Path) -> DataFile:
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ForedraftError(f"{path} cannot be read: {error}") from None
    return DataFile(path.name, text, hashlib.sha256(data).hexdigest())
