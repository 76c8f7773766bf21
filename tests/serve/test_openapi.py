"""The OpenAPI document describes the server, and requests made up from it never make the server fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from foredraft.serve.app import create_app

from .kit import JSON, Running, judged_llm, serving


def test_the_document(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    v1 = {"/v1/chat/completions", "/v1/completions", "/v1/suggestions", "/v1/models", "/v1/models/{name}"}
    v1 |= {"/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"}
    operators = {"/health", "/metrics", "/page/options", "/status/data"}
    assert set(document["paths"]) == v1 | operators  # all but the page's own files
    chat = document["components"]["schemas"]["ChatBody"]
    assert set(chat["required"]) == {"model", "messages"}
    assert "speculation" in chat["properties"]
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/ChatBody")


FUZZ = """
import sys, schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

url, examples = {url!r}, {examples}
schema = schemathesis.openapi.from_url(url + "/openapi.json")

def named(context, body):
    if isinstance(body, dict) and len(str(body)) % 3:
        body = body | {{"model": "tiny", "max_tokens": 2, "max_completion_tokens": 2}}
    if isinstance(body, dict) and len(str(body)) % 5 == 0:
        body = body | {{"speculation": {{"rule": "judge", "threshold": len(str(body)) % 13 / 10}}}}
    return body

schema.hook("map_body")(named)

@schema.parametrize()
@settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
          derandomize=True, database=None)
def test_no_5xx(case):
    case.call_and_validate(checks=[not_a_server_error], timeout=120)
"""


def fuzz(server: Running, folder: Path, examples: int) -> str:
    """In a process of its own: the tool brings plugins and settings that our own run should not have."""
    file = folder / "test_fuzz.py"
    file.write_text(FUZZ.format(url=server.url, examples=examples), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(file)],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    paths = server.client.get("/openapi.json").json()["paths"]
    assert f"{sum(map(len, paths.values()))} passed" in done.stdout  # one test for each operation of each route
    assert server.metric("step_failures_total") == 0
    assert server.client.get("/health").status_code == 200
    server.wait(lambda: server.service.admission.held == 0)
    return done.stdout


def test_some_requests_from_the_document_find_no_5xx(server: Running, tmp_path: Path) -> None:
    """A few of every operation; the next test has hundreds."""
    refused = server.metric("refusals_total", status="400")
    fuzz(server, tmp_path, 8)
    assert server.metric("refusals_total", status="400") > refused


@pytest.mark.slow
def test_requests_from_the_document_find_no_5xx(tiny: Path, judge: Path, tmp_path: Path) -> None:
    with serving(judged_llm(tiny, judge), allow_lossy=True) as server:
        fuzz(server, tmp_path, 400)
        answered = server.metric("requests_total", outcome="length") + server.metric("requests_total", outcome="stop")
        refused = {status: server.metric("refusals_total", status=status) for status in ("400", "403", "404", "415")}
        assert answered > 0, "no request was good enough to be answered"
        assert refused["400"] > 0
        print(f"{answered:g} answered; refused: {refused}")


ROUTES = ["/", "/page/index.html", "/page/nothing", "/page/options", "/health", "/metrics", "/openapi.json", "/nothing"]
ROUTES += ["/v1/models", "/v1/models/tiny", "/v1/models/a%2Fb", "/v1/completions", "/v1/chat/completions"]
ROUTES += ["/status", "/status/data", "/v1/embeddings"]
ROUTES += ["/v1/suggestions", "/page/%2e%2e%2fservice.py", "//", "/v1/"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_no_route_fails_whatever_the_method(server: Running, method: str) -> None:
    """The page's files too, which the document does not name."""
    for route in ROUTES:
        for content in (b"{}", b"\xff"):
            reply = server.client.request(method, route, content=content, headers=JSON)
            assert reply.status_code < 500, (method, route, content, reply.text)


def test_every_route_is_fuzzed(server: Running) -> None:
    """A new route has to be in the document or in the list above."""
    documented = set(server.client.get("/openapi.json").json()["paths"])
    known = {str(getattr(route, "path", "")).replace(":path}", "}") for route in _routes(create_app(server.service))}
    assert known - documented == {"/", "/status", "/page/{name}", "/openapi.json"}


def _routes(app: FastAPI) -> Iterator[object]:
    """All routes, those of included routers too."""
    for route in app.routes:
        inner = getattr(route, "original_router", None)
        yield from inner.routes if inner is not None else [route]
