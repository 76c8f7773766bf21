"""`foredraft train` with no text named: the model writes it first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from foredraft.cli.app import run
from foredraft.cli.training import data


@pytest.fixture
def writer(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with room for a row of training text."""
    folder = tmp_path / "writer"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    return folder


def test_a_model_writes_its_own_training_text(
    writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "OWN_ON_CPU", 4)
    questions = tmp_path / "questions.txt"
    questions.write_text("".join(f"Why is number {i} odd?\n" for i in range(8)))
    out = tmp_path / "heads"
    sizes = ("--steps", "1", "--rows", "2", "--held-out", "2", "--measure", "0", "--vocab", "64", "--dtype", "fp32")
    order = ["train", "mlp-speculator", "--prompts", str(questions), "--out", str(out), "--json", "--device", "cpu"]
    assert run([*order, "--target", str(writer), *sizes]) == 0
    captured = capsys.readouterr()
    assert "writes its training text first" in captured.err
    assert json.loads(captured.out)["done"] and (out / "mlp-speculator" / "config.json").exists()
    record = json.loads((out / "corpus" / "provenance.json").read_text())
    assert record["target"] == "writer" and record["rows"] >= 8  # no folder of this machine

    monkeypatch.setattr(data, "write_corpus", None)  # what is written is not written again
    assert run([*order, "--target", str(writer), *sizes]) == 0
    capsys.readouterr()
    assert run([*order, "--target", "smollm2", *sizes]) == 2
    message = capsys.readouterr().err
    assert "holds what writer wrote; give another --out" in message and message.count("\n") == 1


def test_processes_that_share_a_run_share_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert run(["train", "eagle3", "--out", str(tmp_path / "heads")]) == 2
    assert "write it first (foredraft data)" in capsys.readouterr().err
    assert not (tmp_path / "heads").exists()
