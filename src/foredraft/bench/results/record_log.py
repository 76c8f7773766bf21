"""records.jsonl of a run's folder: records by key, appended as answers come, never written twice for one key."""

from __future__ import annotations

from pathlib import Path

from ...errors import ForedraftError
from ...jsonl import JsonLines
from .records import Key, Record


class RecordLog:
    """Records on disk; no other process may write to the file meanwhile."""

    def __init__(self, path: Path) -> None:
        self._log = JsonLines(path, Record.from_json, lock=True)
        self.records = {record.key: record for record in self._log.rows}

    def __enter__(self) -> RecordLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def __contains__(self, key: Key) -> bool:
        return key in self.records

    def add(self, record: Record) -> None:
        """Append a record; a kill of this process cannot lose it any more when this returns."""
        if record.key in self.records:
            raise ForedraftError(f"{record.key} has been measured already")
        self.records[record.key] = self._log.append(record.to_json())  # what is counted is what is on the disk
