"""The load test finds nothing wrong with a server that is right, and finds out one that is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foredraft import LLM

from .kit import Load, Running, serving, tiny_llm
from .process import serve

SCRIPT = Path(__file__).parents[2] / "scripts" / "load-test"
sys.path.append(str(SCRIPT.parent))
from soak.phases import Phase, complaints  # noqa: E402
from soak.stolen import Stolen  # noqa: E402

ANSWERS = 2  # of a client in a segment
BRIEF = ("--loads", "1,3", "--answers", str(ANSWERS), "--rounds", "1", "--tokens", "8", "--exact", "--alone", "6")


def load_test(url: str, *more: str) -> tuple[int, str, dict[str, Any]]:
    done = subprocess.run([sys.executable, SCRIPT, url, *BRIEF, *more], capture_output=True, text=True, timeout=600)
    assert done.stdout, done.stderr
    return done.returncode, done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_a_server_that_stands(tiny: Path) -> None:
    with serving(tiny_llm(tiny)) as server:
        code, printed, report = load_test(server.url)
    assert code == 0, printed
    assert [row["clients"] for row in report["loads"]] == [1, 3]
    for row in report["loads"]:
        assert row["errors"] == row["differing"] == 0
        assert row["tokens_per_second_on"] > 0 and row["tokens_per_second_off"] > 0 and row["memory_mib"] > 0
        assert row["finished"] == 2 * ANSWERS * row["clients"] and row["slowest_over_median"] >= 1
    assert printed.startswith("| clients |") and len(printed.splitlines()) == 5


def test_segments_of_some_seconds(tiny: Path) -> None:
    """Time is up in the middle of an answer: it is cut off, and that is no error."""
    with serving(tiny_llm(tiny, pause=0.1)) as server:
        timed = ("--loads", "2", "--seconds-per-segment", "1", "--rounds", "1", "--tokens", "100", "--alone", "1")
        done = subprocess.run([sys.executable, SCRIPT, server.url, *timed], capture_output=True, text=True, timeout=600)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and report["loads"][0]["errors"] == 0
    assert all(s["seconds"] > 0.9 and not s["finished"] for s in report["segments"])


def test_one_alternating_run_with_its_spread_and_memory(tiny: Path) -> None:
    """Against a server of its own process: every round has both kinds, first off, then on first."""
    with serve(str(tiny), "--slots", "4", "--max-length", "128", "--method", "suffix") as process:
        pid = str(process.popen.pid)
        code, printed, report = load_test(process.url, "--rounds", "2", "--pid", pid, "--floor", "0.01")
    assert code == 0, printed
    assert [(s["clients"], s["turn"], s["speculating"]) for s in report["segments"]] == [
        (load, turn, on) for load in (1, 3) for turn, on in ((0, False), (0, True), (1, True), (1, False))
    ]
    for row in report["loads"]:
        turns = [[s for s in report["segments"] if (s["clients"], s["turn"]) == (row["clients"], n)] for n in range(2)]
        rates = [{s["speculating"]: s["tokens"] / s["seconds"] for s in pair} for pair in turns]
        ratios = [rate[True] / rate[False] for rate in rates]
        assert row["lowest_ratio"] == pytest.approx(min(ratios)) and row["highest_ratio"] == pytest.approx(max(ratios))
        assert 0.9 * row["lowest_ratio"] < row["ratio"] < 1.1 * row["highest_ratio"]
    assert all(len(s["finished"]) == ANSWERS * s["clients"] for s in report["segments"])
    assert 50 < report["process_mib"]["before"] <= 1.5 * report["process_mib"]["after"]


def slowed(folder: Path) -> Load:
    """A drafter that takes a twentieth of a second a round: speculation is there to lose."""

    def load() -> LLM:
        llm = tiny_llm(folder, "prompt-lookup")()
        drafter = llm.method.drafter
        assert drafter is not None
        propose = drafter.propose

        def dawdle(*args: Any) -> Any:
            time.sleep(0.05)
            return propose(*args)

        drafter.propose = dawdle  # type: ignore[method-assign]
        return llm

    return load


def test_a_floor_that_is_not_reached(tiny: Path) -> None:
    with serving(slowed(tiny), share_drafts=False) as server:
        code, _, report = load_test(server.url, "--floor", "0.95")
        assert code == 1
        assert all(row["ratio"] < 0.95 for row in report["loads"])
        for clients, line in zip((1, 3), report["failed"], strict=True):
            assert line.startswith(f"{clients} clients: on/off is 0.") and line.endswith("below 0.95")
        assert all(row["errors"] == row["differing"] == 0 for row in report["loads"])
        code, _, report = load_test(server.url)
        assert code == 0 and report["failed"] == []


@pytest.mark.parametrize("wrong", [("--loads", "0"), ("--loads", "one"), ("--rounds", "0"), ("--pid", "4194999")])
def test_wrong_options(wrong: tuple[str, ...], server: Running) -> None:
    done = subprocess.run([sys.executable, SCRIPT, server.url, *wrong], capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert wrong[0].strip("-") in done.stderr or "process 4194999" in done.stderr
    assert "Traceback" not in done.stderr


def tampered(folder: Path, how: str) -> Load:
    """Once several requests run, a token of every second step is lost, doubled or another one, never the same twice."""
    other = iter(range(5, 10**6))
    changes = {
        "lost": lambda ids: ids[1:],
        "doubled": lambda ids: ids[:1] + ids,
        "changed": lambda ids: [next(other) % 1000, *ids[1:]],
    }

    def load() -> LLM:
        llm = tiny_llm(folder)()
        advance, count = llm.engine.advance, iter(range(10**6))

        def tamper(turns: Any) -> Any:
            several = sum(len(turn.requests) for turn in turns) > 1
            events = advance(turns)
            if several and next(count) % 2:
                for event in events:
                    event.token_ids[:] = changes[how](event.token_ids)
                    event.reasons[:] = (event.reasons * 2)[: len(event.token_ids)]
            return events

        llm.engine.advance = tamper  # type: ignore[method-assign]
        return llm

    return load


@pytest.mark.parametrize("how", ["lost", "doubled", "changed"])
def test_a_server_that_tampers(tiny: Path, how: str) -> None:
    with serving(tampered(tiny, how)) as server:
        code, _, report = load_test(server.url)
    alone, together = report["loads"]
    assert code == 1
    assert alone["errors"] == alone["differing"] == 0
    assert together["errors"] + together["differing"] > 0


@pytest.mark.slow
def test_an_attack_with_its_page(tiny: Path, tmp_path: Path) -> None:
    """A few seconds of what `docs/results/server` shows ten minutes of."""
    short = ("--attack", "--minutes", "0.6", "--quiet-minutes", "0.1", "--page", str(tmp_path / "page"))
    keys = ("--api-key", "good", "--attack-key", "bad")
    with serving(tiny_llm(tiny), api_keys=("good", "bad")) as server:
        done = subprocess.run(
            [sys.executable, SCRIPT, server.url, *short, *keys], capture_output=True, text=True, timeout=600
        )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["rows"]["attacked"]["answers"] > 10 and report["rows"]["attacked"]["lost"] == 0, done.stderr
    kinds = {name.partition(":")[0] for name in report["attackers"]}
    assert {"bomb", "schema", "hang-up", "malformed", "wrong", "stop", "long prompt", "idle socket"} <= kinds
    assert not any(re.search(r": 5\d\d$", name) for name in report["attackers"])
    page = (tmp_path / "page" / "results.md").read_text(encoding="utf-8")
    assert "p99 with the attack over p99 without it" in page and "good" not in page and "127.0.0.1" not in page
    assert (tmp_path / "page" / "soak.svg").exists()


def made(seconds: list[float], memory: list[float]) -> Phase:
    phase = Phase(0.0, [(float(at), took, 0.0) for at, took in enumerate(seconds)], seconds=float(len(memory)))
    phase.memory = [(float(at), held) for at, held in enumerate(memory)]
    return phase


@pytest.mark.parametrize(
    ("took", "memory", "lost", "health", "said"),
    [
        (0.12, 500.0, [], 200, []),
        (0.16, 500.0, [], 200, ["p99 is 1.60 times as long"]),
        (0.12, 600.0, [], 200, ["memory has grown from 500 to 600 MiB"]),
        (0.12, 500.0, ["the tokens differ"], 200, ["1 answers lost: the tokens differ"]),
        (0.12, 500.0, [], 503, ["/health says 503"]),
    ],
)
def test_what_an_attack_must_not_do(took: float, memory: float, lost: list[str], health: int, said: list[str]) -> None:
    """Memory may rise at first, while caches fill; not after a fifth of the time."""
    quiet = made([0.1] * 200, [300.0] * 100)
    attacked = made([0.1] * 190 + [took] * 10, [300.0] * 10 + [500.0] * 75 + [memory] * 15)
    attacked.lost = lost
    assert complaints(quiet, attacked, health) == said


def test_what_the_host_took_is_not_the_servers_doing() -> None:
    """Answers during which the machine's host took its processors are counted, and left out of the quantiles."""
    stolen = Stolen()
    for tenths in range(101):  # from second 4 to second 6, one processor's time is gone
        stolen.sample(tenths / 10, min(max(0.0, tenths / 10 - 4), 2.0))
    cores = os.cpu_count() or 1
    assert stolen.share(1, 3) == 0 and stolen.share(4.5, 5.5) == pytest.approx(1 / cores)
    assert stolen.share(3, 5) == pytest.approx(1 / cores / 2, abs=0.1 / cores)
    phase = Phase(0.0, [(0.0, 0.1, 0.0)] * 99 + [(9.0, 20.0, 0.4)])
    row = phase.row()
    assert (row["disturbed"], row["p99_seconds"], row["p99_of_all_seconds"]) == (1, 0.1, 20.0)
