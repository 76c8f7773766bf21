"""Records survive the disk, and a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.bench.results.record_log import RecordLog
from foredraft.bench.results.records import Difference, Record
from foredraft.errors import ForedraftError

from .made import line, record

ODD = 'line\nbreak \u2028 and "quotes" \x85'


def whole() -> Record:
    difference = Difference(1, 7, None, 0.25, None)
    made = record("suffix:length=3", [1, 2, 3, 4], line([1, 3], 0.125, prefill=0.5), difference=difference, text=ODD)
    return replace(made, peak_bytes=10, harness=0.5, mates=2, order=3, time=9.0)


def test_a_record_comes_back_as_it_was() -> None:
    text = json.dumps(whole().to_json(), ensure_ascii=False)
    assert "\n" not in text
    assert Record.from_json(json.loads(text)) == whole()


def test_sums_are_written_for_readers_of_the_file(tmp_path: Path) -> None:
    text = json.dumps(whole().to_json())
    for part in ('"steps": 2', '"accepted": 2', '"accepted_by_position": [1, 1]', '"prefill": 0.5', '"total": 0.75'):
        assert part in text


def test_what_was_measured_is_found_again_and_never_added_twice(tmp_path: Path) -> None:
    path = tmp_path / "run" / "records.jsonl"
    with RecordLog(path) as log:
        log.add(whole())
        with pytest.raises(ForedraftError, match="already"):
            log.add(whole())
    with RecordLog(path) as log:
        assert log.records == {whole().key: whole()}


def test_half_a_line_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordLog(path) as log:
        log.add(whole())
    first = path.read_bytes()
    path.write_bytes(first + first[: len(first) // 2])
    other = replace(whole(), key=whole().key._replace(question="2"))
    with RecordLog(path) as log:
        assert list(log.records) == [whole().key]
        log.add(other)
    with RecordLog(path) as log:
        assert list(log.records.values()) == [whole(), other]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"half": \n' + json.dumps(whole().to_json()) + "\n")
    with pytest.raises(ForedraftError, match="damaged"):
        RecordLog(path)


def test_two_processes_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "records.jsonl"), pytest.raises(ForedraftError, match="another process"):
        RecordLog(tmp_path / "records.jsonl")
