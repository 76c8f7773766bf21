"""`foredraft serve` from the outside: signals, exit codes, one-line errors."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from foredraft.cli.app import run

from .process import Process, serve

BODY = {"prompt": "a b c", "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}
SLOTS, LIMIT = 2, 300  # answers at a time; seconds for what takes a few on an idle machine


def read(url: str, model: str, tokens: int) -> tuple[list[int], str]:
    """The ids of a stream, and how it ended: done, or with an error's code."""
    ids: list[int] = []
    body = BODY | {"model": model, "max_tokens": tokens}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=LIMIT) as response:
        if response.status_code != 200:
            return ids, str(response.status_code)
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return ids, "done"
            if line:
                document = json.loads(line.removeprefix("data: "))
                if "error" in document:
                    return ids, document["error"]["code"]
                ids += document["choices"][0]["token_ids"]
    return ids, "hung up"


def under_load(process: Process, model: str, tokens: int, clients: int = 6) -> list[tuple[list[int], str]]:
    """Streams that are running, and waiting, when the server is told to stop."""
    with ThreadPoolExecutor(clients) as pool:
        begun = [pool.submit(read, process.url, model, tokens) for _ in range(clients)]
        while (
            f"foredraft_requests_waiting {clients - SLOTS}.0"
            not in httpx.get(f"{process.url}/metrics", timeout=LIMIT).text
        ):
            assert not any(future.done() for future in begun)
            time.sleep(0.01)
        process.stop()
        return [future.result() for future in begun]


@pytest.fixture
def long(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with room for answers that still run when the last of several clients has come."""
    shutil.copytree(tiny, tmp_path / "long")
    config = tmp_path / "long" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 1024}))
    return tmp_path / "long"


def test_sigterm_under_load_finishes_what_it_can(long: Path) -> None:
    with serve(str(long), "--slots", str(SLOTS), "--grace", str(LIMIT), "--name", "small") as process:
        ends = under_load(process, "small", 300)
        assert process.popen.wait(LIMIT) == 0
    assert [how for _, how in ends] == ["done"] * 6
    assert all(ids == ends[0][0] for ids, _ in ends)
    assert len(ends[0][0]) == 300
    assert "stopped; 6 answers finished after the signal, 0 cut" in process.said[-1]


@pytest.mark.slow
def test_sigterm_under_load_cuts_what_it_cannot(long: Path) -> None:
    with serve(str(long), "--slots", str(SLOTS), "--grace", "0") as process:
        ends = under_load(process, str(long), 300)
        assert process.popen.wait(LIMIT) == 0
    assert {how for _, how in ends} <= {"shutdown", "done"}
    assert ends[-1][1] == "shutdown"
    cut = sum(how == "shutdown" for _, how in ends)
    assert f"{cut} cut" in process.said[-1]


@pytest.mark.slow
def test_an_idle_server_stops_at_once(tiny: Path) -> None:
    with serve(str(tiny)) as process:
        process.stop(signal.SIGINT)
        assert process.popen.wait(LIMIT) == 0


@pytest.mark.parametrize(
    ("argv", "code", "hint"),
    [
        (("smolm2",), 2, "did you mean 'smollm2'"),
        (("--method", "sufix"), 2, "did you mean 'suffix'"),
        (("--allow-methods", "suffix,medsa"), 2, "did you mean 'medusa'"),
        (("--max-queue", "-1"), 2, "'--max-queue' must be 0 or positive"),
        (("--timeout", "0"), 2, "'--timeout' must be positive"),
        (("--api-key", ""), 2, "empty"),
        (("--host", "no.such.host.invalid"), 1, "cannot listen on no.such.host.invalid:8000"),
        (("--prot", "1"), 2, "did you mean --port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage(argv: tuple[str, ...], code: int, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *argv]) == code
    said = capsys.readouterr().err
    assert said.startswith("foredraft: ")
    assert said.count("\n") == 1
    assert hint in said


def test_an_empty_list_of_keys_serves_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREDRAFT_API_KEYS", "")
    assert run(["serve"]) == 2
    assert "FOREDRAFT_API_KEYS holds no key" in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert run(["serve", "--port", str(other.getsockname()[1])]) == 1
    assert "in use; name another port with --port\n" in capsys.readouterr().err


def test_the_core_needs_none_of_it() -> None:
    """The package and its command line work without the extra; `serve` says what is missing."""
    hide = (
        "import sys\nfor name in ('fastapi', 'uvicorn', 'prometheus_client', 'llguidance'): sys.modules[name] = None\n"
    )
    code = hide + "from foredraft.cli.app import run\nprint(run(['methods', '--json']), run(['serve']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.splitlines()[-1] == "0 2", done.stderr
    assert "foredraft[serve]" in done.stderr
