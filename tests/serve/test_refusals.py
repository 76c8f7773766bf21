"""Bad input gets a clear error in OpenAI's form, with the right status, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from foredraft.serve.grammars.json_grammar import JsonGrammars
from foredraft.serve.settings import Limits, Settings

from .kit import JSON, MODEL, Running, serving, tiny_llm

HELLO = [{"role": "user", "content": "hello"}]


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["message"]
    return document["error"]


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1, 2]", "should be an object"),
        (b"null", "should be an object"),
        (b'{"model": "\xff\xfe"}', "not valid JSON"),
        (b"\x80\x81", "not valid JSON"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b'{"model": ' + b"[" * 100_000, "lists and objects"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "temperature"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 5000 + b"}", "number"),
    ],
    ids=["empty", "cut", "list", "null", "utf-8", "bytes", "surrogate", "deep", "nan", "huge"],
)
def test_bodies_that_are_no_bodies(server: Running, body: bytes, hint: str) -> None:
    said = error(server.client.post("/v1/chat/completions", content=body, headers=JSON), 400)
    assert hint in said["message"]
    assert said["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("max_tokens", "9"),
        ("n", 0),
        ("n", 10**30),
        ("seed", 1 << 63),
        ("stop", 5),
        ("stop", ["x"] * 17),
        ("stream", "yes"),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"-1": 1}),
        ("presence_penalty", 2.5),
        ("messages", []),
        ("messages", "hello"),
        ("messages", [{"role": "boss", "content": "x"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"content": "x"}]),
        ("tools", [{"type": "function"}]),
        ("skip_special_tokens", False),
        ("return_tokens_as_token_ids", True),
        ("echo", True),
        ("chat_template_kwargs", "x"),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}),
        ("speculation", {"method": "eagle3"}),
        ("speculation", {"method": "sufix"}),
        ("speculation", {"rule": "chain"}),
        ("speculation", {"rule": "no-such-rule"}),
        ("speculation", {"threshold": 0.5}),
        ("speculation", {"draft_length": 0}),
        ("speculation", {"off": 1}),
        ("model", None),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_wrong_values(server: Running, field: str, value: Any) -> None:
    said = error(server.post("chat/completions", **{"messages": HELLO, "max_tokens": 4, field: value}), 400)
    assert field in f"{said['param']} {said['message']}" or field in ("speculation", "response_format")
    assert said["type"] == "invalid_request_error"


def test_an_image_is_refused_by_name(server: Running) -> None:
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    said = error(server.post("chat/completions", messages=[{"role": "user", "content": image}]), 400)
    assert said["message"].endswith("this server reads text only, no image_url")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": [49152]}, "not a token id"),
        ({"prompt": [-1]}, "not a token id"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "x", "suffix": "y"}, "middle"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"prompt": "x", "logit_bias": {"49152": 1}}, "logit_bias"),
        ({"prompt": "x", "ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
        ({"prompt": ["x"] * 17}, "17 answers"),
        ({"prompt": "x", "n": 17}, "17 answers"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_completions(server: Running, body: dict[str, Any], hint: str) -> None:
    assert hint in error(server.post("completions", **body), 400)["message"]


@pytest.mark.parametrize("token", [10_000_000, -1, 1 << 70])
def test_stop_ids_that_no_token_has_fail_no_step(server: Running, token: int) -> None:
    """With `min_tokens` they are part of a mask, which has no place for them."""
    failures = server.metric("step_failures_total")
    asked = {"prompt": "a b", "max_tokens": 4, "temperature": 0, "logit_bias": {"49151": 100}, "return_token_ids": True}
    answer = server.post("completions", **asked, min_tokens=3, stop_token_ids=[token])
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == [49151] * 4
    assert server.metric("step_failures_total") == failures


def test_what_does_not_exist(server: Running) -> None:
    unknown = error(server.post("chat/completions", model="gpt-9", messages=HELLO), 404)
    assert unknown["code"] == "model_not_found"
    assert unknown["param"] == "model"
    error(server.client.get("/v1/models/gpt-9"), 404)
    error(server.client.get("/v1/nothing"), 404)
    error(server.client.get("/v1/chat/completions"), 405)


def test_prompts_beyond_the_context(server: Running) -> None:
    said = error(server.post("completions", prompt="word " * 300), 400)
    assert said["code"] == "context_length_exceeded"
    assert "127 at most" in said["message"]
    assert server.post("completions", prompt=[5] * 127).json()["usage"]["completion_tokens"] == 1


def test_smaller_limits(tiny: Path) -> None:
    limits = Limits(body_bytes=1000, prompt_tokens=5, new_tokens=7, choices=2)
    with serving(tiny_llm(tiny), limits) as server:
        error(server.post("completions", prompt="x" * 1000), 413)
        assert "5 at most" in error(server.post("completions", prompt=[1] * 6), 400)["message"]
        assert "3 answers" in error(server.post("completions", prompt="x", n=3), 400)["message"]
        answer = server.post("completions", prompt=[1] * 5, n=2, max_tokens=50, ignore_eos=True).json()
        assert answer["usage"]["completion_tokens"] == 14
        error(
            server.client.post("/v1/completions", content=(b"x" * 100 for _ in range(1000)), headers=JSON), 413
        )  # of unknown length
        assert server.metric("refusals_total", status="413") == 2
        with contextlib.suppress(httpx.TransportError):  # an endless body is hung up on
            error(server.client.post("/v1/completions", content=itertools.repeat(b"x" * 65536), headers=JSON), 413)
        server.wait(lambda: server.metric("refusals_total", status="413") == 3)


def test_a_body_that_does_not_come(tiny: Path) -> None:
    with (
        serving(tiny_llm(tiny), Limits(body_seconds=0.5)) as server,
        closing(socket.create_connection(server.url.removeprefix("http://").split(":"))) as trickle,
    ):
        kind = b"Content-Type: application/json\r\n"
        trickle.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + kind + b"Content-Length: 9\r\n\r\n{")
        assert trickle.recv(100).startswith(b"HTTP/1.1 408")


def test_a_full_server_says_when_to_come_back(tiny: Path) -> None:
    with serving(tiny_llm(tiny, slots=1, pause=0.05), Limits(queue=1)) as server, httpx.Client(timeout=120) as other:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
        url = f"{server.url}/v1/completions"
        with other.stream("POST", url, json=body) as first, other.stream("POST", url, json=body) as second:
            assert first.status_code == second.status_code == 200
            server.wait(lambda: server.metric("requests_waiting") == 1)
            refused = server.post("completions", prompt="x")
            said = error(refused, 429)
            assert said["code"] == "rate_limit_exceeded"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        server.wait(lambda: server.service.admission.held == 0)
        assert "3 answers" in error(server.post("completions", prompt="x", n=3), 400)["message"]
        assert server.post("completions", prompt="x", max_tokens=1).status_code == 200


def test_too_many_open_replies(tiny: Path) -> None:
    with serving(tiny_llm(tiny, pause=0.05), Limits(open_replies=1)) as server, httpx.Client(timeout=120) as other:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
        with other.stream("POST", f"{server.url}/v1/completions", json=body) as first:
            assert first.status_code == 200
            assert "replies" in error(server.post("completions", prompt="x"), 429)["message"]
        server.wait(lambda: server.post("completions", prompt="x", max_tokens=1).status_code == 200)


def test_time_is_limited(tiny: Path) -> None:
    with serving(tiny_llm(tiny, pause=0.1), Limits(seconds=1.5)) as server:  # a whole answer takes ten seconds
        said = error(server.post("completions", prompt="x", max_tokens=100, ignore_eos=True), 504)
        assert said["code"] == "timeout"
        with server.client.stream(
            "POST", "/v1/completions",
            json={"model": MODEL, "prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True},
        ) as response:  # fmt: skip
            lines = [line for line in response.iter_lines() if line]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "timeout"
        assert len(lines) >= 2  # what was ready has been sent
        assert server.running == 0
        assert server.metric("requests_total", outcome="timeout") == 2


def test_time_is_limited_for_a_schema_too(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(JsonGrammars, "check", slow)
    with serving(tiny_llm(tiny), Limits(seconds=0.3)) as server:
        assert error(server.post("completions", prompt="x", guided_regex="a+"), 504)["code"] == "timeout"


def test_api_keys(tiny: Path) -> None:
    with serving(tiny_llm(tiny), api_keys=("first-key\n", "clé-secrète")) as server:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic first-key"}):
            for response in (
                server.client.get("/v1/models", headers=header),
                server.client.post("/v1/completions", content=b"{", headers=header),
            ):
                assert error(response, 401)["code"] == "invalid_api_key"
        for key in ("first-key", "clé-secrète"):
            header = {"Authorization": f"Bearer {key}".encode()}
            assert server.client.get("/v1/models", headers=header).status_code == 200
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/metrics").status_code == 401
        assert server.client.get("/metrics", headers={"Authorization": "Bearer first-key"}).status_code == 200
    with serving(tiny_llm(tiny), api_keys=("first-key",), open_metrics=True) as server:
        assert server.client.get("/metrics").status_code == 200


def test_half_a_body_and_no_http_at_all(server: Running) -> None:
    """Connections that end in the middle, or never made sense, leave the server as it was."""
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
    for junk in (head + b'{"model": "ti', b"\x16\x03\x01 nonsense\r\n\r\n", b"GET"):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(junk)
    assert server.client.get("/health").status_code == 200


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="positive"):
        Limits(choices=0)
    with pytest.raises(ValueError, match="grace"):
        Limits(grace=-1)
    with pytest.raises(ValueError, match="empty"):
        Settings("x", api_keys=("good", " "))
