"""Your own file: letters and tokens, lines that are refused, and a session at the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from foredraft.errors import ForedraftError, UsageError
from foredraft.judge.labels.annotate import Annotator
from foredraft.judge.labels.annotations import read_notes, records_of
from foredraft.judge.labels.record import RIGHT, UNCOUNTED, WRONG, read_records
from foredraft.models import Tokenizer, resolve

from .toyfolder import command, lines, write_jsonl

R, W, U = RIGHT, WRONG, UNCOUNTED
ENDS = frozenset({2})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve("smollm2"))


def note(**more: object) -> dict[str, object]:
    return {"question": "What is it?", "answer": "A car, no."} | more


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"first_wrong": None}, (R, R, R, R, R, R)),
        ({"first_wrong": -1}, (R, R, R, R, R, R)),
        ({"first_wrong": 0}, (W, U, U, U, U, U)),
        ({"first_wrong": 4}, (R, W, U, U, U, U)),  # the last letter of " car"
        ({"first_wrong": 10}, (R, R, R, R, R, W)),  # it should have gone on
        ({"first_wrong": 3, "unit": "token"}, (R, R, R, W, U, U)),
        ({"first_wrong": 5, "unit": "token"}, (R, R, R, R, R, W)),
    ],
)
def test_lines_become_records(
    tokenizer: Tokenizer, tmp_path: Path, more: dict[str, object], expected: tuple[int, ...]
) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [note(**more), note()])
    (record,) = records_of(read_notes(path), tokenizer, ENDS, "mine")
    assert record.labels == expected and record.source == "file" and record.domain == "mine"
    assert tokenizer.decode(record.answer) == "A car, no." and "What is it?" in tokenizer.decode(record.prompt)


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("{", "is no JSON"),
        ("[1]", "`question` and `answer`"),
        ('{"question": "a", "answer": 3}', "`question` and `answer`"),
        ('{"question": "a", "answer": "b", "first_wrong": 2}', "character 2 of 1"),
        ('{"question": "a", "answer": "b", "first_wrong": "x"}', "whole number"),
        ('{"question": "a", "answer": "b", "first_wrong": 0, "unit": "word"}', "unit"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, trouble: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(ForedraftError, match=f":2 .*{trouble}"):
        read_notes(path)


def session(path: Path, tokenizer: Tokenizer, said: Sequence[str]) -> tuple[int, str]:
    """Annotate with these commands; the end of input comes after them."""
    screen, waiting = io.StringIO(), iter(said)

    def read(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    marked = Annotator(path, tokenizer, Console(file=screen, width=100), read).run()
    assert next(waiting, None) is None, "a command was not read"
    return marked, screen.getvalue()


def test_a_session_marks_goes_back_and_resumes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [note(question=f"Question {i}?", more=i) for i in range(4)]
    path = write_jsonl(tmp_path / "mine.jsonl", rows)
    marked, screen = session(path, tokenizer, ["n", "b", "1", "x", "99", "s", "q"])
    assert marked == 1 and "Question 0?" in screen and " 1  car" in screen and "tokens 0 to 4" in screen
    assert [row.get("first_wrong", "open") for row in lines(path)] == [1, "open", "open", "open"]
    assert [row["more"] for row in lines(path)] == [0, 1, 2, 3]  # whatever else stood there is kept
    marked, screen = session(path, tokenizer, ["e", "n"])
    assert marked == 2 and "Question 0?" not in screen and "Question 1?" in screen
    assert [row.get("first_wrong", "open") for row in lines(path)] == [1, 10, None, "open"]
    labels = [record.labels for record in records_of(read_notes(path), tokenizer, ENDS, "mine")]
    assert labels == [(R, W, U, U, U, U), (R, R, R, R, R, W), (R, R, R, R, R, R)]


def test_back_is_one_step_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [note() for _ in range(3)])
    marked, _ = session(path, tokenizer, ["0", "1", "b", "2", "b", "b", "b", "n", "s", "3"])
    assert marked == 3 and [row["first_wrong"] for row in lines(path)] == [None, 5, 6]


def test_token_numbers_survive_the_way_over_letters(tokenizer: Tokenizer, tmp_path: Path) -> None:
    answer = "Nine plus eleven makes 20, whereas 2x10 is 21."
    count = len(tokenizer.encode(answer, add_special=False))
    for token in range(count):
        path = write_jsonl(tmp_path / "mine.jsonl", [note(answer=answer)])
        session(path, tokenizer, [str(token)])
        (record,) = records_of(read_notes(path), tokenizer, ENDS, "mine")
        assert record.labels.index(WRONG) == token


def test_the_command_reads_your_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [note(first_wrong=0), note(first_wrong=None), note()])
    out = tmp_path / "records.jsonl"
    assert command("mine", "--source", "file", "--data", path, "--out", out, "--json") == 0
    assert capsys.readouterr().out.count("\n") == 1
    records = list(read_records(out))
    assert len(records) == 2 and records[0].group == records[1].group
    assert (tmp_path / "records.jsonl.provenance.json").exists()
    with pytest.raises(UsageError, match="--data"):
        command("mine", "--source", "file", "--data", tmp_path / "none", "--out", out)
    (tmp_path / "records.jsonl.journal").touch()
    with pytest.raises(UsageError, match="was mined"):
        command("mine", "--source", "file", "--data", path, "--out", out)
    with pytest.raises(UsageError, match="no file"):
        command("annotate", tmp_path / "none")
