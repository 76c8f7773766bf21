"""The OpenAPI document describes the server, and requests made up from it never make the server fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .kit import Running, judged_llm, serving


def test_the_document(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    v1 = {"/v1/chat/completions", "/v1/completions", "/v1/suggestions", "/v1/models", "/v1/models/{name}"}
    assert set(document["paths"]) == v1 | {"/health", "/metrics", "/page/options"}  # all but the page's own files
    chat = document["components"]["schemas"]["ChatBody"]
    assert set(chat["required"]) == {"model", "messages"}
    assert "speculation" in chat["properties"]
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/ChatBody")


FUZZ = """
import sys, schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

url, examples = sys.argv[1], int(sys.argv[2])
schema = schemathesis.openapi.from_url(url + "/openapi.json")

def named(context, body):
    if isinstance(body, dict) and len(str(body)) % 3:
        body = body | {"model": "tiny", "max_tokens": 2, "max_completion_tokens": 2}
    if isinstance(body, dict) and len(str(body)) % 5 == 0:
        body = body | {"speculation": {"rule": "judge", "threshold": len(str(body)) % 13 / 10}}
    return body

schema.hook("map_body")(named)

@schema.parametrize()
@settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
          derandomize=True, database=None)
def test_no_5xx(case):
    case.call_and_validate(checks=[not_a_server_error], timeout=120)
"""


@pytest.mark.slow
def test_requests_from_the_document_find_no_5xx(tiny: Path, judge: Path, tmp_path: Path) -> None:
    """In a process of its own: the tool brings plugins and settings that our own run should not have."""
    file = tmp_path / "test_fuzz.py"
    with serving(judged_llm(tiny, judge), allow_lossy=True) as server:
        code = FUZZ.replace("sys.argv[1], int(sys.argv[2])", f"{server.url!r}, 400")
        file.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:]
        paths = server.client.get("/openapi.json").json()["paths"]
        assert f"{sum(map(len, paths.values()))} passed" in done.stdout  # one test for each operation of each route
        answered = server.metric("requests_total", outcome="length") + server.metric("requests_total", outcome="stop")
        assert answered > 0, "no request was good enough to be answered"
        assert server.metric("refusals_total", status="400") > 0
        assert server.metric("step_failures_total") == 0
        assert server.client.get("/health").status_code == 200
        server.wait(lambda: server.service.admission.held == 0)
