"""The file of records: appended to as answers come, read back after a kill, never written twice for one key."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from ...errors import ForedraftError
from .records import Key, Record

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]


class Ledger:
    """records.jsonl of a run's folder. Whole lines only: half a line at the end, left by a kill, is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self.records: dict[Key, Record] = {}
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def __contains__(self, key: Key) -> bool:
        return key in self.records

    def add(self, record: Record) -> None:
        """Append a record; a kill of this process cannot lose it any more when this returns."""
        if record.key in self.records:
            raise ForedraftError(f"{record.key} has been measured already")
        text = record.to_json()
        self._file.write(text.encode() + b"\n")
        self._file.flush()
        self.records[record.key] = Record.from_json(text)  # what is counted is what is on the disk

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ForedraftError(
                f"another process is writing to {self.path}; wait for it or name another --out"
            ) from None

    def _read(self) -> None:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        for record in parse(data[:whole].decode(), self.path):
            self.records[record.key] = record


def parse(text: str, path: Path) -> list[Record]:
    """The records of a file's text."""
    try:
        return [Record.from_json(line) for line in text.split("\n") if line]
    except (ValueError, KeyError, TypeError) as error:
        raise ForedraftError(f"{path} is damaged ({error!r}); move it away and run again") from None
