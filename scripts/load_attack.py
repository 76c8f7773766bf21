"""Attackers and innocent clients on one server: what do the innocent ones notice? For `load-test --attack`.

Only against a loopback address. Everything is bounded: a fixed number of attackers, each with a pause between two
attempts, for a fixed time. A quarter of the time there are no attackers, so that there is something to compare with.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

PAUSE = 0.25  # seconds between two attempts of an attacker
IDLE_SOCKETS, HALF_BODIES = 64, 16
QUIET = 0.25  # share of the time without attackers
INNOCENT, TOKENS = 4, 16
JSON = {"Content-Type": "application/json"}
Work = Callable[[httpx.AsyncClient], Awaitable[str]]
WORST_RATIO = 1.5  # of the innocent clients' p99 with attackers to that without


@dataclass
class Phase:
    """What innocent clients got."""

    seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # answers that did not come whole
    refused: int = 0  # 429: told to come back later

    def quantile(self, share: float) -> float | None:
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None

    def row(self) -> dict[str, Any]:
        found = {"answers": len(self.seconds), "lost": len(self.lost), "refused": self.refused}
        return found | {"p50_seconds": self.quantile(0.5), "p99_seconds": self.quantile(0.99)}


class Attack:
    """One run against one server."""

    def __init__(self, url: str, headers: dict[str, str], attackers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        if self.host != "localhost" and not ipaddress.ip_address(self.host).is_loopback:
            raise SystemExit("load-test: --attack is for a server on this machine alone")
        self.url, self.headers, self.attackers = url, headers, attackers
        self.outcomes: Counter[str] = Counter()
        self.model = ""

    async def run(self, minutes: float) -> dict[str, Any]:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=120, limits=limits) as good,
            httpx.AsyncClient(base_url=self.url, headers=self.attackers, timeout=30, limits=limits) as bad,
        ):
            self.model = (await good.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
            expected = await self.ask(good, Phase())
            await self.schema(good)  # what the first schema takes once is no growth
            before, quiet, attacked = await memory(good), Phase(), Phase()
            await self.innocent(good, quiet, 60 * minutes * QUIET, expected)
            tasks = [asyncio.create_task(self.repeat(name, work, bad)) for name, work in self.kinds()]
            await self.innocent(good, attacked, 60 * minutes * (1 - QUIET), expected)
            health = (await good.get("/health")).status_code
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(2)
            after = await memory(good)
        return self.report(quiet, attacked, {"before": before, "after": after}, health)

    def report(self, quiet: Phase, attacked: Phase, mib: dict[str, float], health: int) -> dict[str, Any]:
        slow, usual = attacked.quantile(0.99), quiet.quantile(0.99)
        ratio = slow / usual if slow and usual else None
        failed = [f"{len(phase.lost)} answers lost: {phase.lost[0]}" for phase in (quiet, attacked) if phase.lost]
        failed += [f"/health says {health}"] if health != 200 else []
        failed += [f"p99 is {ratio:.2f} times as long"] if ratio is None or ratio > WORST_RATIO else []
        found = {"quiet": quiet.row(), "attacked": attacked.row(), "p99_ratio": ratio, "memory_mib": mib}
        return found | {"attackers": dict(sorted(self.outcomes.items())), "failed": failed}

    # --- innocent clients -------------------------------------------------------------------------------------------

    async def innocent(self, client: httpx.AsyncClient, phase: Phase, seconds: float, expected: list[int]) -> None:
        end = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < end:
                ids = await self.ask(client, phase)
                if ids and ids != expected:
                    phase.lost.append("the tokens differ")

        await asyncio.gather(*(one() for _ in range(INNOCENT)))

    async def ask(self, client: httpx.AsyncClient, phase: Phase) -> list[int]:
        begun = time.monotonic()
        try:
            reply = await client.post("/v1/completions", json=self.body())
        except httpx.HTTPError as error:
            phase.lost.append(repr(error)[:200])
            return []
        if reply.status_code == 429:
            phase.refused += 1
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
            return []
        if reply.status_code != 200:
            phase.lost.append(f"{reply.status_code}: {reply.text[:200]}")
            return []
        phase.seconds.append(time.monotonic() - begun)
        ids: list[int] = reply.json()["choices"][0]["token_ids"]
        return ids

    def body(self, **more: Any) -> dict[str, Any]:
        fixed = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": TOKENS}
        return {"model": self.model, "prompt": "One, two, three, four,"} | fixed | more

    # --- attackers --------------------------------------------------------------------------------------------------

    def kinds(self) -> list[tuple[str, Work]]:
        several: list[tuple[str, Work]] = [
            ("bomb", self.bomb),
            ("schema", self.schema),
            ("hang-up", self.hang_up),
            ("slow reader", self.slow),
        ]
        several += [("malformed", self.malformed), ("wrong", self.wrong), ("stop", self.stops)]
        several += [("idle socket", self.idle)] * IDLE_SOCKETS + [("half a body", self.half)] * HALF_BODIES
        return several

    async def repeat(
        self, name: str, work: Callable[[httpx.AsyncClient], Awaitable[str]], bad: httpx.AsyncClient
    ) -> None:
        while True:
            try:
                said = await work(bad)
            except (OSError, httpx.HTTPError, asyncio.IncompleteReadError) as error:
                said = type(error).__name__
            self.outcomes[f"{name}: {said}"] += 1
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))

    async def post(self, bad: httpx.AsyncClient, **request: Any) -> str:
        return str((await bad.post("/v1/completions", **request)).status_code)

    async def bomb(self, bad: httpx.AsyncClient) -> str:
        parts = [{"type": "string", "pattern": f".*i.{{{20 + i}}}"} for i in range(random.randint(25, 40))]
        schema = {"allOf": parts, "title": str(random.random())}
        kind = {"type": "json_schema", "json_schema": {"schema": schema}}
        return str(
            (await bad.post("/v1/completions", json=self.body(response_format=kind, ignore_eos=False))).status_code
        )

    async def schema(self, bad: httpx.AsyncClient) -> str:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "title": str(random.randrange(50))}
        kind = {"type": "json_schema", "json_schema": {"schema": schema}}
        return str(
            (await bad.post("/v1/completions", json=self.body(response_format=kind, ignore_eos=False))).status_code
        )

    async def hang_up(self, bad: httpx.AsyncClient) -> str:
        async with bad.stream("POST", "/v1/completions", json=self.body(stream=True, max_tokens=64)) as reply:
            async for _ in reply.aiter_bytes():
                break
        return str(reply.status_code)

    async def slow(self, bad: httpx.AsyncClient) -> str:
        data = json.dumps(self.body(stream=True, logprobs=20)).encode()
        async with self.connection(self.head(len(data)) + data) as (reader, _):
            for _ in range(10):
                await asyncio.wait_for(reader.read(1), 30)
                await asyncio.sleep(1)
        return "read 10 bytes"

    async def malformed(self, bad: httpx.AsyncClient) -> str:
        item = random.choice(["{}", "[1]", "[{}]", '"x"'])
        field = random.choice(["prompt", "stop", "stop_token_ids", "tools"])
        return await self.post(bad, content=filled(self.model, field, item), headers=JSON)

    async def wrong(self, bad: httpx.AsyncClient) -> str:
        junk = random.choice([b"{", b"\xff\xfe", b"[]", b'{"model": 5}', b"{" * 100_000, b'{"a":' * 50_000])
        return str(
            (await bad.post("/v1/completions", content=junk, headers={"Content-Type": "application/json"})).status_code
        )

    async def stops(self, bad: httpx.AsyncClient) -> str:
        stop = ["a" * random.choice([1024, 300_000]) + "b"] * 2
        return await self.post(bad, json=self.body(stop=stop))

    async def idle(self, bad: httpx.AsyncClient) -> str:
        async with self.connection(random.choice([b"", b"POST /v1/comp"])) as (reader, _):
            await reader.read()
        return "closed by the server"

    async def half(self, bad: httpx.AsyncClient) -> str:
        async with self.connection(self.head(900_000) + b"x" * 400_000) as (reader, _):
            said = await reader.read(100)
        return said[:12].decode("ascii", "replace") or "closed by the server"

    def head(self, length: int) -> bytes:
        lines = ["POST /v1/completions HTTP/1.1", f"Host: {self.host}:{self.port}", f"Content-Length: {length}"]
        lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in self.attackers.items())]
        return "\r\n".join([*lines, "", ""]).encode()

    def connection(self, said: bytes) -> Connection:
        return Connection(self.host, self.port, said)


class Connection:
    """A socket with a small buffer, closed whatever happens."""

    def __init__(self, host: str, port: int, said: bytes) -> None:
        self._where, self._said = (host, port), said

    async def __aenter__(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, self._writer = await asyncio.open_connection(*self._where, limit=1024)
        self._writer.write(self._said)
        return reader, self._writer

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@cache
def filled(model: str, field: str, item: str) -> bytes:
    """A megabyte of a wrong value."""
    return f'{{"model":"{model}","{field}":[{",".join([item] * (1_000_000 // (len(item) + 1)))}]}}'.encode()


async def memory(client: httpx.AsyncClient) -> float:
    """MiB of the server's process."""
    page = (await client.get("/metrics")).text
    name = "process_resident_memory_bytes "
    return next((float(line.split()[-1]) / 2**20 for line in page.splitlines() if line.startswith(name)), 0.0)


def table(report: dict[str, Any]) -> str:
    lines = ["| innocent clients | answers | lost | refused | p50 s | p99 s |", "|---|---|---|---|---|---|"]
    for name in ("quiet", "attacked"):
        row = report[name].values()
        cells = ["-" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in row]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
