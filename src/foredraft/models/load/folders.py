"""Folders that appear whole or not at all, and the cache that holds them. Knows no models."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import ForedraftError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[str, int, int], None]  # description, done, total
FORMAT = 1  # of the folders that our converters write; a higher number makes older ones be converted again
SINGLE = "model.safetensors"  # the weights of a folder, where they are not cut into shards
STORED = "model.json"  # the config of a model that comes with the package
MARK = "foredraft.json"  # the last file of a converted folder: its format, and what it was made from
STALE_SECONDS = 24 * 3600  # a working folder this old belongs to a process that was killed


def silent(description: str, done: int, total: int) -> None:
    """The progress callback that says nothing."""


def cache_home() -> Path:
    """Where foredraft keeps what it downloads and converts: FOREDRAFT_HOME, else the user's cache folder."""
    if own := os.environ.get("FOREDRAFT_HOME"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or "~/.cache").expanduser().absolute() / "foredraft"


@contextmanager
def working(stem: Path) -> Iterator[Path]:
    """A fresh folder named after `stem`, gone when the block ends however it ends."""
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(stem)
        folder = stem.with_name(f"{stem.name}-{secrets.token_hex(4)}")
        folder.mkdir()
    except OSError as error:
        raise ForedraftError(f"{stem.parent} cannot be written: {error.strerror}; set FOREDRAFT_HOME") from None
    try:
        yield folder
    except OSError as error:
        raise ForedraftError(
            f"writing to {stem.parent} failed ({error}); free some space or set FOREDRAFT_HOME"
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes `target` when the block ends, and vanishes when the block fails.

    A folder that is already there stays: another process was quicker, and both hold the same files.
    """
    with working(target.with_name(f".{target.name}.partial")) as folder:
        yield folder
        try:
            folder.rename(target)
        except OSError:
            if not target.exists():
                raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time makes a folder; the others wait, and should look again whether it is there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = open(folder.with_name(f".{folder.name}.lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise ForedraftError(f"{folder.parent} cannot be written: {error.strerror}; set FOREDRAFT_HOME") from None
    with file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed, however the process ends
        yield


def mark(folder: Path, source: Path) -> None:
    """Declare a converted folder complete."""
    record = {"format": FORMAT, "source": source.name, "bytes": source.stat().st_size}
    (folder / MARK).write_text(json.dumps(record, indent=2), encoding="utf-8")


def is_ready(folder: Path) -> bool:
    """Whether a folder was converted completely and in today's format."""
    try:
        return bool(json.loads((folder / MARK).read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_stale(stem: Path) -> None:
    for left in stem.parent.glob(f"{stem.name}-*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
