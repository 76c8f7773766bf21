"""What operators set and read: a file of options, logs in JSON."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.app import run
from foredraft.serve import listen
from foredraft.serve.upkeep.json_log import ACCESS, JsonLines

from .kit import Running, serving, tiny_llm


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been served."""
    found: list[Any] = []
    monkeypatch.setattr(listen, "run", lambda *given: found.append(given) or 0)
    return found


def test_options_from_a_file(started: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('model = "stories15m"\nport = 8123\nmax-queue = 7\njson_log = true\napi-key = ["a", "b"]\n')
    assert run(["serve", "--config", str(file), "--max-queue", "9"]) == 0
    service, host, port, _ = started[0]
    assert (host, port) == ("127.0.0.1", 8123) and service.settings.model_name == "stories15m"
    assert service.limits.queue == 9 and service.settings.json_log  # the command line goes first
    assert service.settings.api_keys == ("a", "b")


@pytest.mark.parametrize(
    ("text", "said"), [("prot = 1", "prot"), ("port = ", "TOML"), (None, "cannot read"), ("port = 'x'", "integer")]
)
def test_a_wrong_file_is_refused(
    started: list[Any], tmp_path: Path, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.toml"
    if text is not None:
        file.write_text(text)
    assert run(["serve", "--config", str(file)]) != 0
    assert said in capsys.readouterr().err and not started


def test_every_request_is_a_line(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    with serving(tiny_llm(tiny), json_log=True) as server:
        ask(server, "one")
        server.wait(lambda: bool(caplog.records))
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records if record.name == ACCESS]
    (line,) = [line for line in lines if line["path"] == "/v1/completions"]
    assert line["request_id"] == "one" and line["status"] == 200 and line["seconds"] > 0
    assert "secret words" not in json.dumps(lines)


def test_a_request_that_the_server_fails_is_named_and_logged_as_such(
    tiny: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    with serving(tiny_llm(tiny), json_log=True) as server:
        monkeypatch.setattr(server.service, "check_model", lambda name: 1 / 0)
        body = {"model": "tiny", "prompt": "x"}
        answer = server.client.post("/v1/completions", json=body, headers={"x-request-id": "two"})
        assert answer.status_code == 500 and answer.headers["x-request-id"] == "two"
        server.wait(lambda: any(record.name == ACCESS for record in caplog.records))
    (line,) = [record.fields for record in caplog.records if record.name == ACCESS]  # type: ignore[attr-defined]
    assert line["request_id"] == "two" and line["status"] == 500


def ask(server: Running, name: str) -> None:
    body = {"model": "tiny", "prompt": "secret words", "max_tokens": 1}
    assert server.client.post("/v1/completions", json=body, headers={"x-request-id": name}).status_code == 200


def test_what_failed_is_in_the_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.getLogger("foredraft.serve").makeRecord("a", 40, "f", 1, "it %s", ("failed",), _info())
    line = json.loads(JsonLines().format(record))
    assert line["message"] == "it failed" and line["level"] == "error" and "ValueError: broken" in line["error"]


def _info() -> Any:
    import sys

    return sys.exc_info()
