"""The page for operators: figures for whoever may read the metrics, and no text of a client."""

from __future__ import annotations

import json
import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from foredraft.serve.upkeep.recent_errors import RecentErrors
from foredraft.serve.upkeep.status import quantile

from .kit import Running, serving, tiny_llm

SECRET = "my secret words"
ASK: dict[str, Any] = {"prompt": SECRET, "max_tokens": 8, "temperature": 0}


def data(server: Running, key: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found: dict[str, Any] = server.client.get("/status/data", headers=headers).json()
    return found


def test_figures_of_a_server(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is served and how it went; an error is listed without what clients sent."""
    with serving(tiny_llm(tiny)) as server:
        assert server.post("completions", **ASK).status_code == 200
        assert server.post("completions", prompt=SECRET, max_tokens="x").status_code == 400
        found = data(server)
        assert found["state"] == "ready" and found["model"] == "tiny" and found["learning"] is None
        served = found["served"]
        assert served["method"] == "suffix" and served["exact"] and served["slots"] == 4 and "plain" in served["others"]
        (method,) = found["methods"]
        assert (method["method"], method["tokens"]) == ("suffix", 8)
        assert method["rounds"] == server.metric("rounds_total", method="suffix")
        assert found["outcomes"] == {"length": 1} and found["refusals"] == {"400": 1}
        assert found["times"]["request"]["count"] == 1 and found["times"]["request"]["p50"] > 0
        assert found["load"]["running"] == 0 and found["load"]["mib"] > 50 and not found["errors"]
        real, steps = server.llm.engine.step, count()

        def step() -> Any:
            if next(steps) == 1:  # the first one gives it a slot
                raise RuntimeError(SECRET)
            return real()

        monkeypatch.setattr(server.llm.engine, "step", step)
        assert server.post("completions", **ASK).status_code == 200
        found = data(server)
        (error,) = found["errors"]
        assert error["error"] == "RuntimeError" and error["message"].startswith("a step of the engine failed")
        assert SECRET not in json.dumps(found)


def test_only_who_may_read_the_metrics(tiny: Path) -> None:
    with serving(tiny_llm(tiny), api_keys=("sesame",), ready=False) as server:
        page = server.client.get("/status")  # holds nothing
        assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
        for path in ("/status/data", "/metrics"):
            assert server.client.get(path).status_code == 401
            assert server.client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert data(server, "sesame")["model"] == "tiny"  # while it loads, too


@pytest.mark.parametrize(
    ("message", "args", "worded"),
    [
        ("drafter %s failed, request %d goes on without: %r", ("suffix", 7, ValueError("x")),
         "drafter suffix failed, request 7 goes on without: ValueError"),
        ("%s %s failed", ("GET", "/v1/models/my secret words"), "… … failed"),
        ("more than %.1f%%", (12.25,), "more than 12.25%"),
        ("nothing to put in: 100%", (), "nothing to put in: 100%"),
    ],
)  # fmt: skip
def test_how_messages_are_worded(message: str, args: tuple[Any, ...], worded: str) -> None:
    errors = RecentErrors()
    errors.names = frozenset({"suffix"})
    record = logging.LogRecord("foredraft.serve", logging.WARNING, "f", 1, message, args, None)
    assert errors.filter(record) and errors.found[0]["message"] == worded
    assert errors.filter(logging.LogRecord("foredraft.serve", logging.INFO, "f", 1, "x", (), None))
    assert len(errors.found) == 1


def test_quantiles_of_buckets() -> None:
    buckets = [(1.0, 0.0), (2.0, 4.0), (4.0, 8.0), (float("inf"), 10.0)]
    assert quantile(buckets, 0.5) == pytest.approx(2.5) and quantile(buckets, 0.2) == pytest.approx(1.5)
    assert quantile(buckets, 0.99) is None and quantile([(1.0, 0.0)], 0.5) is None and quantile([], 0.5) is None
