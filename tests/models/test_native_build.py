"""Which libraries are loaded: those that this user has built and nobody has touched since; and two first starts."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from foredraft.models import native
from foredraft.models.layers.linear import Linear, TiledLinear
from foredraft.models.native import Compiled, build, compiled
from foredraft.models.native.levels import Level, possible

KEY = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    return build.own_folder()


def planted(folder: Path, content: bytes = b"library", mode: int = 0o700) -> Path:
    """A file that looks as if we had built it."""
    path = folder / build._name(KEY, content)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_library_of_ours_is_found(folder: Path) -> None:
    ours = planted(folder)
    assert build.find(folder, KEY) == ours
    assert build.find(folder, KEY[::-1]) is None


def test_a_library_that_was_changed_is_not_loaded(folder: Path) -> None:
    planted(folder).write_bytes(b"other code")
    assert build.find(folder, KEY) is None


def test_a_library_of_the_right_name_that_we_did_not_write_is_not_loaded(folder: Path) -> None:
    (folder / f"{KEY}.so").write_bytes(b"other code")
    (folder / f"{KEY}.{'0' * 32}.so").write_bytes(b"other code")
    assert build.find(folder, KEY) is None


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_library_that_others_may_write_is_not_loaded(folder: Path, mode: int) -> None:
    planted(folder, mode=mode)
    assert build.find(folder, KEY) is None


def test_a_link_to_a_library_is_not_followed(folder: Path, tmp_path: Path) -> None:
    made = planted(folder)
    elsewhere = tmp_path / "elsewhere.so"
    made.rename(elsewhere)
    made.symlink_to(elsewhere)
    assert build.find(folder, KEY) is None


def test_somebody_elses_library_or_folder_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(folder)
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    assert build.find(folder, KEY) is None
    with pytest.raises(OSError, match="not this user's alone"):
        build.own_folder()


def test_a_folder_that_others_may_write_is_not_used(folder: Path) -> None:
    folder.chmod(0o770)
    with pytest.raises(OSError, match="not this user's alone"):
        build.own_folder()


def test_a_library_without_our_functions_is_no_crash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes run in torch then, and a line says why."""
    wrong = folder / "wrong.so"
    source = folder / "wrong.cpp"
    source.write_text('extern "C" int nothing() { return 0; }', encoding="utf-8")
    try:
        subprocess.run([*build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(wrong)], check=True)
    except OSError:
        pytest.skip("no compiler here")
    module = sys.modules[compiled.__module__]
    monkeypatch.setattr(module, "built", lambda level: wrong)
    monkeypatch.setattr(module, "levels", lambda: [Level("any", frozenset(), ())])
    assert compiled.__wrapped__() is None


COMPILER = """#!/bin/sh
# what a compiler does, slowly: writes the file after -o
while [ "$1" != "-o" ]; do shift; done
echo begun >> {log}
sleep 0.5
echo library $$ > "$2"
"""


def test_two_first_starts_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One builds, the other waits for it and takes the same, and afterwards nothing is built again."""
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(COMPILER.format(log=log), encoding="utf-8")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    level = Level("any", frozenset(), ())
    with ThreadPoolExecutor(2) as pool:
        both = [future.result() for future in [pool.submit(build.built, level), pool.submit(build.built, level)]]
    assert all(path.read_text().startswith("library") for path in both)
    assert build.built(level) == both[0] == both[1]
    assert log.read_text().count("begun") == 1
    assert not [path for path in folder.iterdir() if path.is_dir()]  # no work is left over


def test_without_a_system_compiler_the_wheels_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OSError, match="foredraft\\[compiler\\]"):
        build.find_compiler()
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: name == "ziglang")
    assert build.find_compiler() == [sys.executable, "-m", "ziglang", "c++"]
    assert build._for_zig(("-march=x86-64-v4", "-mavx512vnni")) == ("-mcpu=x86_64_v4+avx512vnni",)
    (tmp_path / "g++").write_text("#!/bin/sh", encoding="utf-8")
    (tmp_path / "g++").chmod(0o700)
    assert build.find_compiler() == [str(tmp_path / "g++")]


@pytest.mark.slow
def test_the_wheels_compiler_builds_a_library_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """g++ hidden; the library of the best level here multiplies as torch does."""
    pytest.importorskip("ziglang")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    found = Compiled(build.built(possible()[0]), possible()[0])
    monkeypatch.setattr(native, "compiled", lambda: found)
    plain = Linear(64, 32, torch.float32, "cpu").requires_grad_(False)
    plain.weight.copy_(torch.randint(-127, 128, (32, 64)) / 64)
    x = torch.randn(9, 64).bfloat16()
    assert torch.allclose(TiledLinear(plain, wide=True)(x), x.float() @ plain.weight.T, rtol=1e-3, atol=1e-3)
