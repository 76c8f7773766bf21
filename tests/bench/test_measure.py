"""Whole runs on a tiny model: who answers when, what is kept after a kill, and that a second run agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from foredraft.bench import machine
from foredraft.bench import measure as run_module
from foredraft.bench import pipeline as session
from foredraft.bench.entries import parse
from foredraft.bench.method_runs import make_runs
from foredraft.bench.pipeline import Listener, Order, run_bench
from foredraft.bench.report import tables
from foredraft.bench.report.html import origin
from foredraft.bench.report.runs import Run, load
from foredraft.bench.results import rows
from foredraft.bench.results.record_log import RecordLog
from foredraft.bench.results.records import Record, stolen_share
from foredraft.cli.bench import show
from foredraft.errors import ForedraftError, UsageError
from foredraft.recipes import LLM

METHODS = "prompt-lookup,suffix,draft-model:drafter=layers:2,length=3"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "copy_bandwidth", lambda device: 1e10)


def order(tiny: Path, out: Path, **changed: Any) -> Order:
    usual = Order(
        model=str(tiny), methods=METHODS, tasks="own-chat,own-math", limit=2, max_new_tokens=16, dtype="fp32",
        device="cpu", out=out,
    )  # fmt: skip
    return replace(usual, **changed)


def records_of(out: Path) -> list[Record]:
    with RecordLog(out / "records.jsonl") as log:
        return list(log.records.values())


def counts(record: Record) -> tuple[Any, ...]:
    """What must not change from run to run: everything but time."""
    line = record.line
    return record.key, record.ids, line.emitted, line.drafted, line.depth, line.accepted, record.loop


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that several tests look at."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, run_bench(order(tiny, out))


def test_every_method_answers_every_turn_and_the_folder_is_complete(finished: tuple[Path, dict[str, Any]]) -> None:
    out, document = finished
    records = records_of(out)
    assert len(records) == len({record.key for record in records}) == 4 * (2 * 2 + 2)
    for name in ("run.json", "provenance.json", "records.jsonl", "scores.jsonl", "summary.json"):
        assert (out / name).exists()
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(document))
    assert set(json.loads((out / "provenance.json").read_text())["data"]) == {"own-chat", "own-math"}


def test_plain_comes_first_and_the_others_rotate(finished: tuple[Path, dict[str, Any]]) -> None:
    records = records_of(finished[0])
    turns: dict[Any, list[str]] = {}
    for record in records:
        turns.setdefault((record.key.task, record.key.question, record.key.turn), []).append(record.key.method)
    assert all(methods[0] == "plain" for methods in turns.values())
    assert len({methods[1] for methods in turns.values()}) == 3
    assert all(record.order == turns[record.key[:3]].index(record.key.method) for record in records)


def test_rows_have_the_names_that_readers_rely_on(finished: tuple[Path, dict[str, Any]]) -> None:
    rows = finished[1]["rows"]
    names = {"method", "task", "speedup", "speedup_low", "speedup_high", "tokens_per_step", "accepted_per_step"}
    assert all(names | {"tokens_per_second"} <= set(row) for row in rows)
    assert {row["task"] for row in rows} == {"own-chat", "own-chat, later turns", "own-math", "all"}
    answers = {row["task"]: row["answers"] for row in rows if row["method"] == "plain"}
    assert 0 < answers["own-chat, later turns"] < answers["own-chat"] < answers["all"]
    plain = next(row for row in rows if row["method"] == "plain" and row["task"] == "all")
    assert plain["speedup"] == 1.0 and plain["tokens_per_step"] == 1.0 and plain["accepted_per_step"] == 0.0
    for row in rows:
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert row["tokens_per_step"] == pytest.approx(1 + row["accepted_per_step"], abs=0.35)
        assert sum(row["split"].values()) == pytest.approx(row["seconds"])


def test_exact_greedy_methods_write_what_plain_decoding_writes(finished: tuple[Path, dict[str, Any]]) -> None:
    assert finished[1]["differences"] == []
    texts: dict[Any, set[tuple[int, ...]]] = {}
    for record in records_of(finished[0]):
        texts.setdefault(record.key[:3], set()).add(tuple(record.ids))
    assert all(len(found) == 1 for found in texts.values())


def test_passes_add_up_to_the_answer(finished: tuple[Path, dict[str, Any]]) -> None:
    for record in records_of(finished[0]):
        line = record.line
        assert sum(line.emitted) == len(record.ids) > 0
        assert sum(line.draft) + sum(line.verify) + line.prefill <= sum(line.seconds) * 1.001
        assert all(a <= d for a, d in zip(line.accepted, line.depth, strict=True))
    lines = [record.line for record in records_of(finished[0])]
    assert median(abs(line.ttft / line.seconds[0] - 1) for line in lines) < 0.05


def test_later_turns_follow_plains_answer(finished: tuple[Path, dict[str, Any]], tiny: Path) -> None:
    records = records_of(finished[0])
    lengths: dict[Any, set[int]] = {}
    for record in records:
        lengths.setdefault(record.key[:3], set()).add(record.prompt_tokens)
    assert all(len(found) == 1 for found in lengths.values())
    llm = LLM(str(tiny), "plain", dtype="fp32")
    question = next(t for t in order(tiny, Path()).load_tasks() if t.task.name == "own-chat").questions[0]
    first = next(r for r in records if r.key[:4] == ("own-chat", question.id, 0, "plain"))
    second = next(r for r in records if r.key[:4] == ("own-chat", question.id, 1, "suffix"))
    assert second.prompt_tokens == len(question.prompt(llm.tokenizer, 1, (first.text,)))


def test_a_second_run_counts_the_same(finished: tuple[Path, dict[str, Any]], tiny: Path, tmp_path: Path) -> None:
    run_bench(order(tiny, tmp_path / "one", methods="suffix"))  # alone, among no others
    again = [counts(r) for r in records_of(tmp_path / "one") if r.key.method == "suffix"]
    assert again == [counts(r) for r in records_of(finished[0]) if r.key.method == "suffix"]


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("after", [1, 14])
def test_a_killed_run_goes_on_where_it_stopped(
    finished: tuple[Path, dict[str, Any]], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    out, asked = tmp_path / "run", order(tiny, tmp_path / "run")
    measured: list[int] = []
    original = run_module.follow

    def counting(engine: Any, requests: Any) -> Any:
        if len(measured) == after:
            raise Killed
        if len(requests[0].sequence.tokens) < 600 and requests[0].sequence.params.max_new_tokens == 16:
            measured.append(1)  # not the warm-up
        return original(engine, requests)

    monkeypatch.setattr(run_module, "follow", counting)
    with pytest.raises(Killed):
        run_bench(asked)
    assert len(records_of(out)) == after
    with (out / "records.jsonl").open("ab") as file:
        file.write(b'{"task": "own-ch')
    before = measured[:]
    after = -1
    run_bench(asked)
    whole = records_of(out)
    assert len(measured) - len(before) == len(whole) - len(before)  # nothing was measured twice
    assert [counts(r) for r in whole] == [counts(r) for r in records_of(finished[0])]  # nothing was lost


def test_a_finished_run_is_not_measured_again(
    finished: tuple[Path, dict[str, Any]], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "follow", None)
    assert run_bench(order(tiny, finished[0]))["rows"] == finished[1]["rows"]


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"methods": "suffix"}, "other methods"),
        ({"max_new_tokens": 21}, "max_new_tokens"),
        ({"temperature": 0.5}, "temperature"),
    ],
)
def test_other_conditions_do_not_mix(
    finished: tuple[Path, dict[str, Any]], tiny: Path, changed: dict[str, Any], part: str
) -> None:
    with pytest.raises(UsageError, match=part):
        run_bench(order(tiny, finished[0], **changed))


def test_sampled_runs_repeat_themselves(tiny: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        run_bench(order(tiny, tmp_path / name, temperature=0.7, methods="suffix", tasks="own-math"))
        runs.append([counts(r) for r in records_of(tmp_path / name)])
    assert runs[0] == runs[1]
    run_bench(order(tiny, tmp_path / "c", temperature=0.7, seed=1, methods="suffix", tasks="own-math"))
    assert [r.ids for r in records_of(tmp_path / "c")] != [ids for _, ids, *_ in runs[0]]


def test_only_who_measured_is_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Summing up again at another commit measures nothing; another machine may not go on."""
    asked = order(tiny, tmp_path, methods="suffix", tasks="own-math", limit=1)
    run_bench(asked)
    first = (tmp_path / "provenance.json").read_text()
    monkeypatch.setattr("foredraft.provenance.commit", lambda: "later")
    run_bench(asked)
    assert (tmp_path / "provenance.json").read_text() == first
    run_bench(replace(asked, limit=2))
    found = json.loads((tmp_path / "provenance.json").read_text())
    assert found["commit"] == "later" and [each["time"] for each in found["earlier"]] == [json.loads(first)["time"]]
    assert f"continued 1 time, before at {str(json.loads(first)['commit'])[:12]}\n" in origin(load(tmp_path))
    monkeypatch.setattr("foredraft.bench.results.folder.device", lambda: {"cpu": "another"})
    with pytest.raises(UsageError, match="another machine"):
        run_bench(replace(asked, limit=3))


@pytest.mark.parametrize(("heat", "shown"), [(0.0, ["0", "0", "-", "-"]), (0.7, ["-", "-", "-", "-"])])
def test_what_nobody_compares_does_not_differ_in_nothing(
    tiny: Path, tmp_path: Path, heat: float, shown: list[str]
) -> None:
    methods = "suffix,draft-model:drafter=layers:1,rule=typical"
    run_bench(order(tiny, tmp_path, methods=methods, tasks="own-math", limit=1, temperature=heat))
    assert [row[-2] for row in tables.methods(load(tmp_path)).rows] == shown  # plain, exact, lossy, its drafter alone


def test_answers_that_failed_are_named(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = sorted(len(ids) for ids in prompts_of(tiny))
    asked = order(tiny, tmp_path / "some", methods="suffix", tasks="own-math", max_length=lengths[-1])
    show(document := run_bench(asked), "t")
    failed = f"{len(document['errors'])} answers failed and count nowhere, the first: the prompt has {lengths[-1]}"
    assert document["rows"] and failed in capsys.readouterr().out
    assert failed in tables.methods(load(tmp_path / "some")).note
    show(run_bench(replace(asked, max_length=8, out=tmp_path / "none")), "t")
    with pytest.raises(UsageError, match=r"nothing to report\. 4 answers failed"):
        load(tmp_path / "none")


def prompts_of(tiny: Path) -> list[list[int]]:
    llm = LLM(str(tiny), "plain", dtype="fp32")
    tasks = order(tiny, Path(), tasks="own-math").load_tasks()
    return [question.prompt(llm.tokenizer, 0, ()) for task in tasks for question in task.questions]


def test_batches_share_the_clock(tiny: Path, tmp_path: Path) -> None:
    asked = order(tiny, tmp_path / "b", batch_size=3, limit=4, methods="prompt-lookup", tasks="own-math")
    document = run_bench(asked)
    records = records_of(tmp_path / "b")
    assert {record.mates for record in records} == {3, 1}
    assert {record.line.sharers[0] for record in records} == {3, 1}
    assert len({record.batch for record in records if record.mates == 3}) == 1
    assert {record.batch for record in records if record.mates == 1} == {""}
    assert document["differences"] == []
    singles = run_bench(replace(asked, batch_size=1, out=tmp_path / "s"))
    assert [r.ids for r in records_of(tmp_path / "s")] == [
        r.ids for r in sorted(records, key=lambda r: (r.key.question, r.key.method))
    ]
    assert singles["rows"][-1]["tokens"] == document["rows"][-1]["tokens"]


def test_forgetting_drafters_know_no_earlier_question(tiny: Path, tmp_path: Path) -> None:
    for name, forget in (("keep", False), ("forget", True)):
        run_bench(order(tiny, tmp_path / name, methods="suffix", tasks="own-math", limit=1, forget=forget))
    keep, forget = (records_of(tmp_path / name) for name in ("keep", "forget"))
    assert [r.line.accepted for r in keep] == [r.line.accepted for r in forget]  # one question: nothing to forget


def test_methods_that_cannot_be_built_are_left_out_with_the_reason(tiny: Path) -> None:
    llm, left_out = LLM(str(tiny), "plain", dtype="fp32"), dict[str, str]()
    runs = make_runs(llm, parse("griffin,suffix"), left_out)
    assert [run.label for run in runs] == ["plain", "suffix"] and "foredraft train griffin" in left_out["griffin"]
    shown = tables.left_out(Run(Path(), "run", {}, {"left_out": left_out}, {}))
    assert shown is not None and shown.rows == [["griffin", left_out["griffin"]]]
    with pytest.raises(ForedraftError):
        make_runs(llm, parse("griffin,suffix"))


def test_a_lossy_method_brings_its_drafter_along(tiny: Path) -> None:
    llm = LLM(str(tiny), "plain", dtype="fp32")
    runs = make_runs(llm, parse("draft-model:drafter=layers:1,rule=typical,suffix"))
    assert [run.label for run in runs][3:] == ["alone:drafter=layers:1"]
    assert [run.target for run in runs] == [True, True, True, False]
    assert not runs[1].method.exact and runs[3].engine is not llm.engine
    exact = make_runs(llm, parse("draft-model:drafter=layers:1"))
    assert [run.label for run in exact] == ["plain", "draft-model:drafter=layers:1"]


def test_lossy_rows_are_scored_beside_the_target_and_the_drafter(tiny: Path, tmp_path: Path) -> None:
    asked = order(tiny, tmp_path / "q", methods="draft-model:drafter=layers:1,rule=typical", tasks="own-math,own-qa")
    rows = {(row["method"], row["task"]): row for row in run_bench(asked)["rows"]}
    lossy = rows["draft-model:rule=typical,drafter=layers:1", "all"]["quality"]
    alone = rows["alone:drafter=layers:1", "all"]["quality"]
    assert lossy["scored"] == alone["scored"] == 2
    assert 0 <= lossy["flip_rate_low"] <= lossy["flip_rate"] <= lossy["flip_rate_high"] <= 1
    assert ("alone:drafter=layers:1", "own-qa") not in rows  # it is there for its quality alone


def test_prompts_that_do_not_fit_are_told_and_skipped(tiny: Path, tmp_path: Path) -> None:
    document = run_bench(order(tiny, tmp_path / "x", tasks="own-qa,own-summarization", methods="suffix"))
    assert {error["task"] for error in document["errors"]} == {"own-summarization"}
    assert "context holds" in document["errors"][0]["error"]
    assert {row["task"] for row in document["rows"]} == {"own-qa", "all"}


def test_methods_that_cannot_be_built_are_named(tiny: Path, tmp_path: Path) -> None:
    reported: list[str] = []
    with pytest.raises(UsageError, match="takes no drafter"):
        run_bench(order(tiny, tmp_path / "x", methods="suffix:drafter=layers:1"), Listener(say=reported.append))


def test_the_harness_costs_little_beside_a_real_pass(finished: tuple[Path, dict[str, Any]]) -> None:
    # The quietest answer counts: a busy machine may stop any of them at any place.
    per_pass = min(record.harness / len(record.line.seconds) for record in records_of(finished[0]))
    assert per_pass < 1e-3  # a pass of the default model takes twenty milliseconds and more
    assert 0 <= finished[1]["stolen_share"] < 1
    assert 0 < finished[1]["overhead_share"] < 1


def test_what_the_machines_host_takes_is_told(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A virtual machine's host may take processors away; times of such a run are not to be trusted, and it says so."""
    monkeypatch.setattr(machine, "stolen_seconds", iter([1.0, 1.0 + 1e6]).__next__)
    meter = machine.StolenMeter()
    meter.start()
    assert meter.share() > 1
    steady = [replace(record, stolen=0.0) for record in records_of(finished[0])]
    records = [replace(record, stolen=0.3) for record in steady]
    assert stolen_share(records) == pytest.approx(0.3) and stolen_share([]) == 0
    assert Record.from_json(records[0].to_json()).stolen == 0.3

    def said(some: list[Record]) -> str:
        show(finished[1] | {"rows": rows.table(some)}, "")
        return " ".join(capsys.readouterr().out.split())

    assert "host held up every answer of plain, prompt-lookup" in said(records)
    assert "held up up to 1 of" in said([*records[:1], *steady[1:]]) and "steal" not in said(steady)


def test_answers_that_were_held_up_count_but_not_their_times(finished: tuple[Path, dict[str, Any]]) -> None:
    def slow(record: Record) -> Record:
        seconds = [100 * each for each in record.line.seconds]
        return replace(record, stolen=0.5, line=replace(record.line, seconds=seconds))

    steady = [replace(record, stolen=0.0) for record in records_of(finished[0])]
    first = next(record.key for record in steady if record.key.method != "plain")
    held_up = rows.table([slow(record) if record.key == first else record for record in steady])
    without = rows.table([record for record in steady if record.key != first])
    row, usual, all_steady = (
        next(row for row in found if (row["method"], row["task"]) == (first.method, "all"))
        for found in (held_up, without, rows.table(steady))
    )
    assert row["disturbed"] == 1 and all_steady["disturbed"] == 0
    times = ("speedup", "speedup_low", "tokens_per_second", "split", "ttft_ms", "step_ms")
    assert [row[name] for name in times] == [usual[name] for name in times]
    counts = ("tokens", "answers", "questions", "tokens_per_step", "acceptance_rate")
    assert [row[name] for name in counts] == [all_steady[name] for name in counts]
