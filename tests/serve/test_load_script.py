"""The load test finds nothing wrong with a server that is right, and finds out one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft import LLM

from .kit import Load, serving, tiny_llm

SCRIPT = Path(__file__).parents[2] / "scripts" / "load-test"
BRIEF = ("--clients", "1,3", "--seconds", "1", "--turns", "1", "--tokens", "12", "--exact", "--alone", "8")


def load_test(url: str) -> tuple[int, str, dict[str, Any]]:
    done = subprocess.run([sys.executable, SCRIPT, url, *BRIEF], capture_output=True, text=True, timeout=120)
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
        assert row["finished"] > 0 and row["slowest_over_median"] >= 1
    assert printed.startswith("| clients |") and len(printed.splitlines()) == 5


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
