"""Processes that must end: a stuck engine ends its server, and SIGTERM ends any server, whatever its clients do."""

from __future__ import annotations

import faulthandler
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from foredraft.serve import listen
from foredraft.serve.service import Service
from foredraft.serve.settings import Limits, Settings

from .kit import MODEL
from .process import Process, started
from .stuck_server import HOLD, SLEEP

SERVER = "tests.serve.stuck_server"
GRACE, END = 1.0, 7.0  # seconds for what runs, and for the rest of the end (docs/security.md)
SLACK = 8.0  # for a machine that is busy with other things
ANSWER = {"max_tokens": 100, "ignore_eos": True, "temperature": 0, "stream": True, "logprobs": 10}


@contextmanager
def connected(process: Process, said: bytes) -> Iterator[socket.socket]:
    """A client that has said something and then reads nothing."""
    host, port = process.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(said)
        yield connection


def request(length: int | None = None, **body: Any) -> bytes:
    data = json.dumps({"model": MODEL} | body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(data)}\r\n\r\n".encode() + data


def health(process: Process) -> str:
    return str(httpx.get(f"{process.url}/health", timeout=60).json()["status"])


def wait_for(status: str, process: Process) -> None:
    end = time.monotonic() + 120
    while health(process) != status:
        assert time.monotonic() < end
        time.sleep(0.02)


def figure(process: Process, name: str) -> float:
    page = httpx.get(f"{process.url}/metrics", timeout=60).text
    lines = [line for line in page.splitlines() if line.startswith(f"foredraft_{name} ")]
    return float(lines[0].split()[-1]) if lines else 0.0


def seconds_to_end(process: Process) -> float:
    begun = time.monotonic()
    process.stop(signal.SIGTERM)
    process.popen.wait(120)
    return time.monotonic() - begun


def test_a_stuck_engine_turns_health_red_and_ends_the_process(tiny: Path) -> None:
    """Red after three seconds, ended after six, for a supervisor to start again; a busy machine finds the time to look
    between. Until the first three, nothing is wrong.
    """
    with started(SERVER, str(tiny), "3", "60") as process:
        assert httpx.post(
            f"{process.url}/v1/completions", json={"model": MODEL, "prompt": [5], "max_tokens": 4}, timeout=60
        ).is_success
        time.sleep(3.5)  # an idle engine is not a stuck one
        assert health(process) == "ready"
        with connected(process, request(prompt=[SLEEP])):
            wait_for("stuck", process)
            refused = httpx.post(f"{process.url}/v1/completions", json={"model": MODEL, "prompt": "a"}, timeout=60)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert process.popen.wait(60) == 1
    assert "a step of the engine has not ended for 6 s; giving up" in "".join(process.said)


@pytest.mark.slow
def test_a_step_that_lets_no_thread_run_ends_the_process_too(tiny: Path) -> None:
    """Neither the event loop nor any watchdog of Python's can do anything: the C library's clock does."""
    with started(SERVER, str(tiny), "1", "60") as process, connected(process, request(prompt=[HOLD])):
        assert process.popen.wait(60) == 1
    assert "Timeout" in "".join(process.said) and "stuck_server.py" in "".join(process.said)


def test_the_clock_runs_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that keeps the interpreter's lock may be the very first: no thread of ours looks at anything after it."""
    begun: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **_: begun.append(seconds))
    monkeypatch.setattr(listen, "WATCH_SECONDS", 600.0)
    with listen.watched(Service(lambda: pytest.fail("not loaded"), Settings(MODEL, Limits(step_seconds=2)))):
        assert begun == [604.0]


def test_sigterm_ends_a_server_whose_engine_is_stuck(tiny: Path) -> None:
    with started(SERVER, str(tiny), "600", str(GRACE)) as process, connected(process, request(prompt=[SLEEP])):
        while not figure(process, "requests_running") + figure(process, "requests_waiting"):
            time.sleep(0.02)
        assert seconds_to_end(process) < GRACE + END + SLACK
        assert process.popen.returncode == 1


def test_sigterm_ends_a_server_whose_clients_dawdle(tiny: Path) -> None:
    """Readers that take nothing, bodies and heads that never come whole, sockets that say nothing."""
    dawdlers = [request(prompt="a b c", **ANSWER), request(length=500, prompt="a")[:-9], b"POST /v1/comp", b""]
    with started(SERVER, str(tiny), "600", str(GRACE)) as process, ExitStack() as open_ones:
        for said in dawdlers * 3:
            open_ones.enter_context(connected(process, said))
        outcome = 'requests_total{outcome="length"}'
        while figure(process, outcome) < 3:  # the readers' answers are ready; they are not read
            time.sleep(0.05)
        assert seconds_to_end(process) < GRACE + END + SLACK
        assert process.popen.returncode == 0
    assert "stopped; 0 answers finished after the signal, 0 cut" in process.said[-1]


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tiny: Path) -> None:
    with started(SERVER, str(tiny), "600", "300") as process, connected(process, request(prompt=[SLEEP])):
        while not figure(process, "requests_running") + figure(process, "requests_waiting"):
            time.sleep(0.02)
        process.stop()
        wait_for("draining", process)
        assert seconds_to_end(process) < END + SLACK
