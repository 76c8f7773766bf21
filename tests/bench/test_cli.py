"""`foredraft bench` from the command line: the last line, silence, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.bench.pipeline import Order
from foredraft.cli.app import run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREDRAFT_DATA", raising=False)
    monkeypatch.setattr("foredraft.bench.machine.COPY_BYTES", {"cpu": 1 << 16})


def arguments(tiny: Path, *more: str) -> list[str]:
    few = ["--methods", "suffix", "--tasks", "own-math,own-qa", "--limit", "1", "-n", "8", "--dtype", "fp32"]
    return ["bench", "--model", str(tiny), "--device", "cpu", *few, *more]


def test_plain_bench_runs_and_ends_with_one_document(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(tiny)) == 0
    out = capsys.readouterr().out
    document = json.loads(out.strip().split("\n")[-1])
    assert {row["task"] for row in document["rows"]} == {"own-math", "own-qa", "all"}
    assert "speed-up" in out and "suffix" in out
    assert document["out"].startswith("results")


def test_json_is_alone_on_stdout_and_runs_can_be_reported(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(tiny, "--json", "--out", "a")) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and json.loads(out)["out"] == "a"
    pytest.importorskip("matplotlib")
    assert run(["bench", "report", "a", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Path(document["html"]).exists() and Path("a/report/results.md").exists()
    assert run(["bench", "report", "a/records.jsonl"]) == 2
    assert "a/records.jsonl is no folder" in capsys.readouterr().err


def test_the_same_command_measures_anew_where_the_first_run_is_finished(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = set()
    for _ in range(2):
        assert run(arguments(tiny, "--json")) == 0
        outs.add(json.loads(capsys.readouterr().out)["out"])
    assert len(outs) == 2


def test_what_is_chosen_about_keys_and_values_is_among_the_conditions() -> None:
    usual, chosen = Order().settings(), Order(kv_cache_memory_bytes="2G", kv_cache_dtype="fp8").settings()
    assert (chosen.kv_cache_memory_bytes, chosen.kv_cache_dtype) == (2 << 30, "fp8")
    assert usual.key != chosen.key


def test_the_engine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--shape", "tiny", "--context", "16", "-n", "16", "--rounds", "1", "--rate", "0.5", "--length", "2"]
    assert run(["bench", "engine", *small, "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in document["rows"]} == {"plain", "synthetic:rate=0.5,length=2"}
    assert {"passes", "plain_step_ms", "host_share"} <= set(document)


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--limt", "3"], "did you mean --limit"),
        (["--tasks", "gsm8k"], "FOREDRAFT_DATA"),
        (["--methods", "nope"], "unknown method"),
        (["--temperature", "-1"], "temperature"),
        (["--batch-size", "0"], "at least 1"),
        (["--kv-cache-dtype", "fp9"], "did you mean 'fp8'"),
        (["--kv-cache-memory-bytes", "much"], "no size of memory"),
        (["--kv-cache-dtype", "fp8"], "on CUDA alone"),
        (["--data", "nowhere"], "not a folder"),
        (["--dtype", "fp12"], "unknown dtype"),
    ],
)
def test_wrong_options_cost_one_line_and_no_model(
    more: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *more]) == 2
    said = capsys.readouterr()
    assert part in said.err and said.err.count("\n") == 1 and not said.out


def test_unknown_subcommands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "reprt"]) == 2
    assert "reprt" in capsys.readouterr().err


def test_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("run", "report", "engine", "peers"))
