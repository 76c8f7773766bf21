"""Logs and files that survive a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.jsonl import JsonLines, read_lines, replacing, write_lines


def log(path: Path, settings: dict[str, object] | None = None, restart: bool = False) -> JsonLines[dict[str, int]]:
    return JsonLines(path, dict, settings, restart=restart)


@pytest.mark.parametrize("settings", [None, {"seed": 1, "lengths": (3, 5)}])
def test_every_cut_of_the_file_resumes_to_the_same_file(tmp_path: Path, settings: dict[str, object] | None) -> None:
    """Wherever a kill cuts the file, what is whole is found again, and the rest can be appended as if never written."""
    path, rows = tmp_path / "folder" / "log.jsonl", [{"a": 1}, {"a": 22}, {"a": 333}]
    first = log(path, settings)
    assert not path.exists()  # nothing was found, so nothing is there
    for row in rows:
        assert first.append(row) == row
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        again = log(path, settings)
        assert again.rows == rows[: len(again.rows)]
        for row in rows[len(again.rows) :]:
            again.append(row)
        assert path.read_bytes() == whole


def test_other_settings_are_refused_or_start_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log(path, {"seed": 1}).append({"a": 1})
    with pytest.raises(UsageError, match="begun with another seed, size"):
        log(path, {"seed": 2, "size": 3})
    other = log(path, {"seed": 2}, restart=True)
    assert not other.rows and log(path, {"seed": 1}).rows == [{"a": 1}]  # not touched before the first row
    other.append({"a": 5})
    assert log(path, {"seed": 2}).rows == [{"a": 5}]
    path.write_text("no settings\n")
    with pytest.raises(ForedraftError, match="does not begin with a run's settings"):
        log(path, {"seed": 2})
    assert not log(path, {"seed": 2}, restart=True).rows


def test_damage_inside_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n\n{"a"\n{"a": 2}\n')
    for read in (lambda: log(path), lambda: read_lines(path, dict)):
        with pytest.raises(ForedraftError, match=r"log\.jsonl:3 is damaged"):
            read()


def test_reading_leaves_a_torn_line_out_and_needs_no_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_lines(path, [{"a": 1}, {"b": "\u2028ü"}])
    assert read_lines(path, dict) == [{"a": 1}, {"b": "\u2028ü"}]
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read_lines(path, dict)) == 2
    path.write_bytes(path.read_bytes()[:-3])  # inside a letter of two bytes
    assert read_lines(path, dict) == [{"a": 1}]


def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as fresh:
        fresh.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
