"""Files that survive a kill: a JSON-lines log that a run resumes from, and files that are replaced whole or not at all.

It knows lines and settings, and nothing of what the lines say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import ForedraftError, UsageError

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
DAMAGED = "is damaged; delete the file to start again"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to. When the block ends it becomes `path`; if the block fails, `path` stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Replace a file by these rows, one JSON value a line."""
    with replacing(path) as fresh:
        fresh.write_bytes(b"".join(map(_line, rows)))


def read_lines(path: Path, parse: Callable[[Any], T], trouble: str = DAMAGED) -> list[T]:
    """The rows of a file; a last line that a kill has cut off is left out."""
    lines = path.read_bytes().split(b"\n")
    try:
        json.loads(lines[-1])
    except ValueError:
        del lines[-1]
    return _parsed(path, lines, parse, trouble)


class JsonLines(Generic[T]):
    """Rows of a run, each on the disk as soon as it is appended; `rows` are those that an earlier run left.

    The first line holds the settings, if any were given. A file of other settings is refused, or started again at the
    first `append` (`restart`). A run that appends nothing leaves no file, unless it locks.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[Any], T],
        settings: Mapping[str, Any] | None = None,
        *,
        restart: bool = False,
        lock: bool = False,
    ) -> None:
        """`lock`: keep other processes out until `close`."""
        self.path, self._parse, self._restart = path, parse, restart
        self._header = b"" if settings is None else _line(dict(settings))
        self._lock = _lock(path) if lock else None
        try:
            rows = self._read() if path.exists() else None
        except BaseException:
            self.close()
            raise
        self._mode, self.rows = ("wb", []) if rows is None else ("ab", rows)

    def append(self, row: Any) -> T:
        """Write a row of plain data; returns it as it would be read back."""
        line = _line(row)
        if self._mode == "wb":
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open(self._mode) as file:
            file.write(line if self._mode == "ab" else self._header + line)
        self._mode = "ab"
        return self._parse(json.loads(line))

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> list[T] | None:
        """The rows; None = start again. Half a line at the end is cut off: the next row must not continue it."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if not whole and self._header.startswith(data):
            return None
        lines = data[:whole].split(b"\n")
        if self._header and not self._fits(lines.pop(0)):
            return None
        rows = _parsed(self.path, lines, self._parse, DAMAGED, 2 if self._header else 1)
        if whole < len(data):
            os.truncate(self.path, whole)
        return rows

    def _fits(self, first: bytes) -> bool:
        now = json.loads(self._header)
        try:
            earlier = json.loads(first)
            other = sorted(k for k in now.keys() | earlier.keys() if now.get(k) != earlier.get(k))
        except (ValueError, AttributeError):
            if self._restart:
                return False
            raise ForedraftError(f"{self.path} does not begin with a run's settings; name another --out") from None
        if other and not self._restart:
            raise UsageError(f"{self.path} was begun with another {', '.join(other)}; name another --out")
        return not other


def _line(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _parsed(path: Path, lines: Iterable[bytes], parse: Callable[[Any], T], trouble: str, first: int = 1) -> list[T]:
    rows = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            rows.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            raise ForedraftError(f"{path}:{number} {trouble}") from None
    return rows


def _lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ForedraftError(f"another process is writing to {path}; wait for it or name another --out") from None
    return handle
