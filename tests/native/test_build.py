"""The cache of built libraries: built once, checked before it is loaded, and honest about failures."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foredraft.errors import UsageError
from foredraft.models.native import LEVELS, build
from foredraft.models.native.levels import SWITCH, Level, levels, possible

AVX2 = LEVELS["avx2"]
GCC, CLANG = shutil.which("g++"), shutil.which("clang++")
COMPILER = """#!/bin/sh
echo built >> {home}/count
for word; do last=$word; done
echo library > "$last"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a compiler that counts its calls."""
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER.format(home=tmp_path))
    compiler.chmod(0o755)
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path


def calls(home: Path) -> int:
    return len((home / "count").read_text().splitlines())


def test_a_library_is_built_once(home: Path) -> None:
    first = build.built(AVX2)
    assert build.built(AVX2) == first and calls(home) == 1
    assert build.built(LEVELS["avx512"]) != first and calls(home) == 2
    assert [path.name for path in first.parent.iterdir() if path.is_dir()] == [], "no working folder is left"


def test_processes_that_start_together_build_once(home: Path) -> None:
    """As the tests' workers do: here as threads, each with a file handle and so a lock of its own."""
    slow = COMPILER.replace("echo library", "sleep 0.3; echo library")
    (home / "c++").write_text(slow.format(home=home))
    with ThreadPoolExecutor(3) as threads:
        found = set(threads.map(build.built, [AVX2] * 3))
    assert len(found) == 1 and calls(home) == 1


@pytest.mark.parametrize("harm", ["content", "writable", "link"])
def test_a_foreign_or_changed_library_is_not_loaded(home: Path, harm: str) -> None:
    path = build.built(AVX2)
    if harm == "content":
        path.write_text("something else")
    elif harm == "writable":
        path.chmod(0o777)
    else:
        other = home / "other.so"
        other.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(other)
    again = build.built(AVX2)
    assert calls(home) == 2 and again.read_text() == "library\n"
    assert not again.is_symlink() and again.stat().st_mode & 0o022 == 0


def test_a_folder_that_others_may_write_to_is_refused(home: Path) -> None:
    folder = build.built(AVX2).parent
    folder.chmod(0o777)
    with pytest.raises(OSError, match="not this user's alone"):
        build.built(AVX2)


def test_the_error_of_a_failed_build_goes_to_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = home / "failing"
    failing.write_text("#!/bin/sh\necho 'line 1: error: what is this' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    with pytest.raises(OSError, match=r"the build failed, see .*build\.log") as error:
        build.built(AVX2)
    assert "\n" not in str(error.value)
    assert "what is this" in (home / "cache" / "native" / build.LOG).read_text()


def test_levels_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "")
    assert levels() == [level for level in possible() if level.automatic]
    assert "amx-emulated" not in {level.name for level in levels()}, "only where it is asked for"
    monkeypatch.setenv(SWITCH, "avx2")
    assert levels() == [level for level in possible() if level.name == "avx2"]
    monkeypatch.setenv(SWITCH, "amx-emulated")
    assert levels() == [level for level in possible() if level.name == "amx-emulated"]
    monkeypatch.setenv(SWITCH, "sse9")
    with pytest.raises(UsageError, match="none of 0, amx"):
        levels()


def test_zig_is_told_the_same_level() -> None:
    reported = build._for_zig(LEVELS["amx"].flags)
    assert reported == ("-mcpu=x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_bf16+amx_int8",)
    assert build._for_zig(LEVELS["amx-emulated"].flags)[1:] == ("-DEMULATED_TILES", "-DGRIDS_BY_WORDS")
    assert build._for_zig(()) == () and isinstance(AVX2, Level)


INSTRUCTIONS = """
#include "registers.h"
void use(const TileShape& shape, char* at) {
    shape_tiles(shape), clear_tile<0>(), load_tile<4>(at, 32), load_tile<7>(at, 64);
    multiply_bytes<0, 4, 7>(), multiply_bf16<3, 5, 6>(), store_tile<0>(at, 64), release_tiles();
}
"""


@pytest.mark.skipif(AVX2 not in possible() or not (GCC or CLANG), reason="instructions of x86, for a system's compiler")
def test_the_compiler_knows_the_tile_instructions(tmp_path: Path) -> None:
    """What runs where there are no tile registers is their emulation; here the real ones are at least compiled."""
    (tmp_path / "use.cpp").write_text(INSTRUCTIONS)
    command = [GCC or CLANG or "", "-std=c++2a", "-I", str(build.HERE), *LEVELS["amx"].flags, "-S", "use.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = " ".join((tmp_path / "use.s").read_text().split())
    assert all(line in found for line in ("tdpbssd %tmm7, %tmm4, %tmm0", "tdpbf16ps %tmm6, %tmm5, %tmm3"))
