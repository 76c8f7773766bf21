"""Builds the library and keeps it: once per source, level and compiler, in a folder that is the user's alone.

What is loaded was built by this user and is as it was built: a file's name holds the hash of its content, and neither
file nor folder may be writable by others. A build appears whole or not at all, and nothing is ever deleted, so several
processes may start at once. Knows nothing of what the library does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from ..load.folders import cache_home, locked
from .levels import Level, features_of_processor

HERE = Path(__file__).parent
# No contraction: a level of a grid is a product and a sum, each rounded, as where the weights were made.
FLAGS = ("-O2", "-fpeel-loops", "-ffp-contract=off", "-std=c++2a", "-fPIC", "-pthread")
LOG = "build.log"
PATIENCE = 1200  # seconds: half a minute of one core; a busy one, or a compiler that builds its own library, takes more
OTHERS = stat.S_IWGRP | stat.S_IWOTH


def built(level: Level) -> Path:
    """Where the library of a level lies, built if it is not there yet; OSError or SubprocessError if it cannot be."""
    compiler = find_compiler()
    sources = sorted(HERE.glob("*.h")) + sorted(HERE.glob("*.cpp"))
    text = b"".join(path.read_bytes() for path in sources)
    about = repr((FLAGS, level.name, level.flags, compiler, features_of_processor()))  # in the same words every time
    key = hashlib.sha256(text + about.encode()).hexdigest()[:16]
    folder = own_folder()
    flags = _for_zig(level.flags) if "ziglang" in compiler else level.flags
    if path := find(folder, key):
        return path
    with locked(folder / key):  # half a minute of one core: whoever comes second waits and takes what the first built
        return find(folder, key) or _build(folder, key, [*compiler, *FLAGS, *flags])


def find_compiler() -> list[str]:
    """The command of a C++ compiler: CXX, g++, clang++, or the one in the package `ziglang`."""
    named = os.environ.get("CXX")
    if named:
        return [named]
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise OSError("no C++ compiler; install g++ or clang++, or pip install 'foredraft[compiler]'")


def _for_zig(flags: tuple[str, ...]) -> tuple[str, ...]:
    """-march=x86-64-v4 -mavx512vnni -> -mcpu=x86_64_v4+avx512vnni; zig's default is the machine that it is on."""
    if not flags:
        return ()
    parts = [flag.removeprefix("-march=").removeprefix("-m") for flag in flags if flag.startswith("-m")]
    return ("-mcpu=" + "+".join(part.replace("-", "_") for part in parts), *(f for f in flags if f.startswith("-D")))


def own_folder() -> Path:
    """The cache's folder for libraries; refused if somebody else could put one there."""
    folder = cache_home() / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder, stat.S_ISDIR):
        raise OSError(f"{folder} is not this user's alone; remove it, or set FOREDRAFT_HOME")
    return folder


def find(folder: Path, key: str) -> Path | None:
    """A library that was built before, if it is ours and as it was built."""
    for path in folder.glob(f"{key}.*.so"):
        if _is_ours(path, stat.S_ISREG) and path.name == _name(key, path.read_bytes()):
            return path
    return None


def _build(folder: Path, key: str, command: list[str]) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / "decoder.so"
        parts = [*command, "-shared", str(HERE / "decoder.cpp"), "-o", str(made)]
        done = subprocess.run(parts, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode or not made.exists():
            log = folder / LOG
            log.write_text(f"$ {' '.join(parts)}\n{done.stdout}{done.stderr}", encoding="utf-8")
            raise OSError(f"the build failed, see {log}")
        made.chmod(0o700)
        path = folder / _name(key, made.read_bytes())
        made.replace(path)
    return path


def _name(key: str, content: bytes) -> str:
    return f"{key}.{hashlib.sha256(content).hexdigest()[:32]}.so"


def _is_ours(path: Path, kind: object) -> bool:
    """Whether a path is of this kind (no link), belongs to this user, and nobody else may write to it."""
    state = path.lstat()
    right = state.st_uid == os.getuid() and not state.st_mode & OTHERS if hasattr(os, "getuid") else True
    return right and bool(kind(state.st_mode))  # type: ignore[operator]
