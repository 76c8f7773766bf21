"""Provenance: complete, and written whole or not at all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from foredraft.provenance import commit, provenance, without_folders, write_json


def test_a_record_says_where_it_came_from() -> None:
    record = provenance(seed=3, data={"t": "abc"}, argv=["foredraft", "bench"], extra=1)
    assert record["argv"] == ["foredraft", "bench"]
    assert (record["seed"], record["data"], record["extra"]) == (3, {"t": "abc"}, 1)
    assert record["device"]["cpu"] and record["device"]["cores"] >= 1
    assert "torch" in record["versions"]
    assert set(record) >= {"time", "commit", "python", "platform"}
    json.dumps(record)


def test_a_copy_without_history_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_COMMIT", "abc")
    monkeypatch.setattr("foredraft.provenance._git", lambda *words: None)
    assert commit() == "abc"
    monkeypatch.setattr("foredraft.provenance._git", lambda here, *words: "def" if words[0] == "rev-parse" else "")
    assert commit() == "def"


def test_the_history_of_another_project_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package lies in an environment inside of a repository that does not track it."""
    monkeypatch.delenv("FOREDRAFT_COMMIT", raising=False)
    installed = tmp_path / "env" / "foredraft" / "provenance.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    me = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), (*me, "commit", "-q", "--allow-empty", "-m", "theirs")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr("foredraft.provenance.__file__", str(installed))
    assert commit() is None
    subprocess.run(["git", "add", "-f", str(installed)], cwd=tmp_path, check=True)
    assert commit() is not None


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    write_json(path, {"x": 1})
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert json.loads(path.read_text()) == {"x": 1}
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/data/me/results.json", "results.json"),
        ("judge=/data/me/judge,paper=/tmp/paper", "judge=judge,paper=paper"),
        ("results/peers/run", "results/peers/run"),
        ("mine=http://127.0.0.1:8000/v1", "mine=http://127.0.0.1:8000/v1"),
    ],
)
def test_commands_do_not_tell_where_things_lie(word: str, kept: str) -> None:
    assert without_folders(word) == kept
