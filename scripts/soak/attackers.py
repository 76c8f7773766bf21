"""Attackers of a server on this machine: schema bombs, malformed bodies, hang-ups, slow readers, idle sockets.

A process of its own, of the lowest priority, so that what it costs itself is not taken for what the server suffers:
`python -m soak.attackers`, with one JSON document of options on its command line. Everything is bounded: a fixed number
of attackers, each of which begins an attempt every `PERIOD` seconds, until SIGTERM; then it prints what became of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

PERIOD = 0.5  # seconds from one attempt of an attacker to its next
IDLE_SOCKETS, HALF_BODIES = 64, 16
TOKENS = 16
JSON = {"Content-Type": "application/json"}
Work = Callable[[], Awaitable[str]]


def check_address(url: str) -> tuple[str, int]:
    """Host and port; nobody else's machine is attacked."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise SystemExit("load-test: --attack is for a server on this machine alone")
    return host, parts.port or 80


class Attackers:
    """All of them, on one server, or on what stands in for one."""

    def __init__(self, url: str, headers: dict[str, str], model: str) -> None:
        (self.host, self.port), self.headers, self.model = check_address(url), headers, model
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30, limits=limits)
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self.repeat(name, work) for name, work in self.kinds()))

    def kinds(self) -> list[tuple[str, Work]]:
        several: list[tuple[str, Work]] = [("bomb", self.bomb), ("schema", self.schema), ("hang-up", self.hang_up)]
        several += [("slow reader", self.slow), ("malformed", self.malformed), ("wrong", self.wrong)]
        several += [("stop", self.stops), ("long prompt", self.long_prompt)]
        return several + [("idle socket", self.idle)] * IDLE_SOCKETS + [("half a body", self.half)] * HALF_BODIES

    async def repeat(self, name: str, work: Work) -> None:
        while True:
            begun = time.monotonic()
            try:
                said = await work()
            except (OSError, httpx.HTTPError, asyncio.IncompleteReadError) as error:
                said = type(error).__name__
            self.outcomes[f"{name}: {said}"] += 1
            await asyncio.sleep(max(0.01, begun + PERIOD * random.uniform(0.5, 1.5) - time.monotonic()))

    # --- one attempt each, and what became of it --------------------------------------------------------------------

    async def bomb(self) -> str:
        parts = [{"type": "string", "pattern": f".*i.{{{20 + i}}}"} for i in range(random.randint(25, 40))]
        return await self.ask_for({"allOf": parts, "title": str(random.random())})

    async def schema(self) -> str:
        return await self.ask_for(
            {"type": "object", "properties": {"n": {"type": "integer"}}, "title": str(random.randrange(50))}
        )

    async def ask_for(self, schema: dict[str, Any]) -> str:
        kind = {"type": "json_schema", "json_schema": {"schema": schema}}
        return await self.post(json=self.body(response_format=kind, ignore_eos=False))

    async def hang_up(self) -> str:
        async with self.http.stream("POST", "/v1/completions", json=self.body(stream=True, max_tokens=64)) as reply:
            async for _ in reply.aiter_bytes():
                break
        return str(reply.status_code)

    async def slow(self) -> str:
        data = json.dumps(self.body(stream=True, logprobs=20)).encode()
        async with Connection(self.host, self.port, self.head(len(data)) + data) as reader:
            for _ in range(10):
                await asyncio.wait_for(reader.read(1), 30)
                await asyncio.sleep(1)
        return "read 10 bytes"

    async def malformed(self) -> str:
        item = random.choice(["{}", "[1]", "[{}]", '"x"'])
        field = random.choice(["prompt", "stop", "stop_token_ids", "tools"])
        return await self.post(content=filled(self.model, field, item), headers=JSON)

    async def wrong(self) -> str:
        junk = random.choice([b"{", b"\xff\xfe", b"[]", b'{"model": 5}', b"{" * 100_000, b'{"a":' * 50_000])
        return await self.post(content=junk, headers=JSON)

    async def stops(self) -> str:
        return await self.post(json=self.body(stop=["a" * random.choice([1023, 300_000]) + "b"] * 2))

    async def long_prompt(self) -> str:
        return await self.post(json=self.body(prompt="so many words " * 70_000))

    async def idle(self) -> str:
        async with Connection(self.host, self.port, random.choice([b"", b"POST /v1/comp"])) as reader:
            await reader.read()
        return "closed by the server"

    async def half(self) -> str:
        async with Connection(self.host, self.port, self.head(900_000) + b"x" * 400_000) as reader:
            said = await reader.read(100)
        return said[:12].decode("ascii", "replace") or "closed by the server"

    async def post(self, **request: Any) -> str:
        return str((await self.http.post("/v1/completions", **request)).status_code)

    def body(self, **more: Any) -> dict[str, Any]:
        fixed = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": TOKENS}
        return {"model": self.model, "prompt": "One, two, three, four,"} | fixed | more

    def head(self, length: int) -> bytes:
        lines = ["POST /v1/completions HTTP/1.1", f"Host: {self.host}:{self.port}", f"Content-Length: {length}"]
        lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode()


class Connection:
    """A socket with a small buffer, closed whatever happens."""

    def __init__(self, host: str, port: int, said: bytes) -> None:
        self._where, self._said = (host, port), said

    async def __aenter__(self) -> asyncio.StreamReader:
        reader, self._writer = await asyncio.open_connection(*self._where, limit=1024)
        self._writer.write(self._said)
        return reader

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@cache
def filled(model: str, field: str, item: str) -> bytes:
    """A megabyte of a wrong value."""
    return f'{{"model":"{model}","{field}":[{",".join([item] * (1_000_000 // (len(item) + 1)))}]}}'.encode()


async def main() -> None:
    attackers = Attackers(**json.loads(sys.argv[1]))
    work = asyncio.ensure_future(attackers.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with suppress(asyncio.CancelledError):
        await work
    print(json.dumps(dict(sorted(attackers.outcomes.items()))))


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main())
