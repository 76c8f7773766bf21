"""Schemas of strangers: tried in another process, which gets little of the processor and seldom for one client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from foredraft.errors import UsageError
from foredraft.serve.api.api_errors import ApiError
from foredraft.serve.grammars import schema_compiler, schema_probe
from foredraft.serve.grammars.schema_probe import SchemaProbe

from .kit import Running


class Known(SchemaProbe):
    """Schemas whose outcome their name tells."""

    def _ask(self, schema: str, tokens: dict[str, Any]) -> dict[str, Any]:
        return {"error": "too much", "costly": True} if "bomb" in schema else {"kilobytes": 1}


def test_a_client_whose_schema_was_a_bomb_waits_with_its_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(schema_probe.time, "monotonic", lambda: now[0])
    probe = Known(seconds=2, megabytes=128)

    def check(schema: str, client: str) -> int:
        return asyncio.run(probe.check(schema, client, {}))

    assert check("usual", "a") == 1 << 10
    with pytest.raises(UsageError, match="too much"):
        check("bomb", "a")
    with pytest.raises(ApiError) as refusal:
        check("new", "a")
    assert refusal.value.status == 429 and refusal.value.headers["Retry-After"] == "20"
    with pytest.raises(UsageError, match="too much"):  # it is known, and costs nothing
        check("bomb", "a")
    assert check("usual", "a") == check("new", "b") == 1 << 10
    now[0] += 21
    assert check("newer", "a") == 1 << 10
    probe.close()


def test_a_client_that_hangs_up_on_its_bomb_waits_all_the_same() -> None:
    """The attempt goes on without it, and is remembered."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Known):
        def _ask(self, schema: str, tokens: dict[str, Any]) -> dict[str, Any]:
            begun.set()
            go_on.wait(60)
            return super()._ask(schema, tokens)

    probe = Slow(seconds=2, megabytes=128)

    async def attack() -> None:
        asked = asyncio.ensure_future(probe.check("bomb", "a", {}))
        await asyncio.to_thread(begun.wait, 60)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        go_on.set()
        assert await probe.check("usual", "b", {}) == 1 << 10  # it comes after the bomb
        with pytest.raises(UsageError, match="too much"):
            await probe.check("bomb", "b", {})
        with pytest.raises(ApiError, match="took all the time"):
            await probe.check("new", "a", {})

    asyncio.run(attack())
    probe.close()


def test_a_schema_whose_process_was_ended_is_tried_again() -> None:
    scripts = iter(["input()", "import sys\nfor line in sys.stdin: print('{\"kilobytes\": 1}', flush=True)"])

    class Mortal(SchemaProbe):
        def _start(self, tokens: dict[str, Any]) -> subprocess.Popen[str]:
            command, pipe = [sys.executable, "-c", next(scripts)], subprocess.PIPE
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    async def twice() -> int:
        with pytest.raises(UsageError, match="was ended"):
            await probe.check("usual", "a", {})
        return await probe.check("usual", "a", {})

    probe = Mortal(seconds=2, megabytes=128)
    assert asyncio.run(twice()) == 1 << 10
    assert probe._process is not None
    with probe._process:
        probe.close()


def test_schemas_of_refused_requests_are_not_kept(server: Running) -> None:
    for i in range(3):
        schema = {"type": "object", "properties": {f"refused {i}": {"type": "integer"}}}
        asked = {"prompt": "a " * 2000, "guided_json": schema}
        assert server.post("completions", **asked).json()["error"]["code"] == "context_length_exceeded"
    grammars = server.service.grammars
    assert not any("refused" in key for kept in (grammars._made, grammars._bytes) for key in kept)
    assert server.post("completions", prompt="a", max_tokens=2, guided_json=schema).status_code == 200
    assert any("refused" in key and size >= 0 for key, size in grammars._bytes.items())


def test_what_takes_long_gets_the_processor_only_while_nobody_else_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells under which policy it ran when it was done."""

    def outcome(tokens: Any, schema: str) -> dict[str, Any]:
        time.sleep(float(schema))
        return {"policy": os.sched_getscheduler(0), "nice": os.nice(0)}

    monkeypatch.setattr(schema_compiler, "outcome", outcome)
    monkeypatch.setattr(schema_compiler, "USUAL_SECONDS", 0.2)
    quick = schema_compiler.attempt(None, "0", 2, 1024)  # type: ignore[arg-type]
    slow = schema_compiler.attempt(None, "0.6", 2, 1024)  # type: ignore[arg-type]
    assert quick == {"policy": os.SCHED_OTHER, "nice": slow["nice"]}
    assert slow["policy"] == os.SCHED_IDLE and slow["nice"] >= schema_compiler.NICE
