"""Every example runs, and the README's Python block too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from foredraft.cli.app import run
from foredraft.recipes.loading import Loaded, load

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python(*argv: str) -> str:
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=1200, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def brief(program: str) -> str:
    """The same program with texts of six tokens."""
    short, places = re.subn(r"max_new_tokens=\d+", "max_new_tokens=6", program)
    assert places
    return short


@pytest.fixture(scope="module")
def loaded() -> Callable[..., Loaded]:
    """Models that are loaded once for all examples: each of them is a program of its own, but not a test of loading."""
    return cache(load)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(
    path: Path, loaded: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("foredraft.recipes.llm.load", lambda model, place, progress: loaded(model, place))
    exec(compile(brief(path.read_text(encoding="utf-8")), str(path), "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    assert out.strip()
    assert "False" not in out


def test_readme_python_block() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    assert "drafted tokens accepted" in python("-c", brief("\n".join(blocks)))


@pytest.mark.parametrize("page", ["README.md", "docs/generate.md", "docs/analyze.md"])
def test_commands_of_the_docs_exist(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every `foredraft ...` line names a subcommand and options that exist."""
    monkeypatch.setenv("COLUMNS", "200")
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("foredraft ")]
    assert len(lines) >= 2
    groups = {"judge"}  # commands of commands: their options belong to the second word
    for line in lines:
        words = line.split()[1:]
        path = words[: 2 if words[0] in groups else 1]
        assert run([*path, *(["run"] if path == ["bench"] else []), "--help"]) == 0
        shown = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", line):
            assert option in shown, line
