"""`scripts/train-drafters` finds its text: what it has written, what MORE names, or one line."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

SCRIPT = Path("scripts/train-drafters").absolute()


def called(folder: Path, more: str = "") -> tuple[int, str, list[str]]:
    """Its status, what it complained of, and the texts that it trains on, by an interpreter that only listens."""
    listener = folder / "python"
    listener.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 1 || echo "$@" > "{folder}/call"\n')
    listener.chmod(0o755)
    given = {name: value for name, value in os.environ.items() if name != "FOREDRAFT_DATA"}
    command = [str(SCRIPT), "toy", str(folder / "out"), "drafter"]
    environment = given | {"PYTHON": str(listener), "MORE": more}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, timeout=60)
    words = (folder / "call").read_text().split() if (folder / "call").exists() else []
    return ended.returncode, ended.stderr, [after for word, after in pairwise(words) if word == "--data"]


def test_no_text_at_all_costs_one_line(tmp_path: Path) -> None:
    code, said, texts = called(tmp_path)
    assert code == 1 and not texts
    assert said.count("\n") == 1 and "run the stage 'data' first, or name corpora with MORE=" in said


def test_corpora_that_are_named_are_enough(tmp_path: Path) -> None:
    assert called(tmp_path, "one two") == (0, "", ["one", "two"])
    written = tmp_path / "out" / "corpus-0" / "corpus.npz"
    written.parent.mkdir(parents=True)
    written.touch()
    assert called(tmp_path, "one") == (0, "", [str(written), "one"])
