"""Clients that ask one question after the other and note when each token came. Knows the API alone, and loads no model.

A process runs many clients; several processes together are one load, so that reading streams is never what is slow.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from soak.phases import SUBJECTS

MODES = ("off", "fixed", "auto")
WORDS = 14  # of a sentence about a subject, roughly in tokens
FIRST, LAST = 5, 100  # ids of prompts for a model without words
TEMPERATURE = 0.7


def speculations(fixed: str) -> dict[str, dict[str, Any]]:
    """What a request says in each mode."""
    return dict(zip(MODES, ({"off": True}, {"method": fixed}, {}), strict=True))


@dataclass(frozen=True)
class Lengths:
    """Of prompts and of answers, in tokens: log-uniform from the first number to the second."""

    prompts: tuple[int, int] = (32, 512)
    answers: tuple[int, int] = (64, 384)

    @staticmethod
    def draw(span: tuple[int, int], chance: random.Random) -> int:
        return round(math.exp(chance.uniform(math.log(span[0]), math.log(span[1]))))


@dataclass(frozen=True)
class Load:
    """What one process does: so many clients until `end`; what comes from `begin` on counts. Times are monotonic."""

    url: str
    model: str
    clients: int
    speculation: dict[str, Any]
    lengths: Lengths
    words: bool  # whether prompts are text, else ids
    start: float
    begin: float
    end: float
    seed: int


@dataclass
class Seen:
    """What clients saw. A piece of a stream may hold several tokens: they share the time since the piece before it."""

    pieces: list[tuple[float, int, float]] = field(default_factory=list)  # seconds after begin, tokens, since the last
    firsts: list[float] = field(default_factory=list)  # seconds until the first token of answers asked for after begin
    finished: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        self.pieces += other.pieces
        self.firsts += other.firsts
        self.finished += other.finished
        self.errors += other.errors


def begin(_: int) -> None:
    """A process that has loaded what it needs, and lets others begin too."""
    time.sleep(0.2)


def run(load: Load) -> Seen:
    """In a process of its own."""
    return asyncio.run(_run(load))


async def _run(load: Load) -> Seen:
    seen, limits = Seen(), httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=load.url, timeout=None, limits=limits) as http:
        chances = [random.Random(f"{load.seed} {number}") for number in range(load.clients)]
        await asyncio.gather(*(_client(http, load, chance, seen) for chance in chances))
    return seen


async def _client(http: httpx.AsyncClient, load: Load, chance: random.Random, seen: Seen) -> None:
    """Clients begin one by one, and hang up when time is up."""
    await asyncio.sleep(max(0.0, load.start + chance.random() * (load.begin - load.start) / 2 - time.monotonic()))
    while (left := load.end - time.monotonic()) > 0:
        try:
            await asyncio.wait_for(_answer(http, load, body(load, chance), seen), left)
        except TimeoutError:
            return
        except Exception as error:  # counted, and the client goes on
            seen.errors.append(f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(0.1)


def body(load: Load, chance: random.Random) -> dict[str, Any]:
    """A sampled answer of some length after a prompt of some length."""
    size = load.lengths.draw(load.lengths.prompts, chance)
    if load.words:
        asked_about = [(chance.choice(SUBJECTS), chance.randrange(3000)) for _ in range(max(1, size // WORDS))]
        prompt: Any = " ".join(f"What is special about {topic} of the year {year}?" for topic, year in asked_about)
    else:
        prompt = [chance.randrange(FIRST, LAST) for _ in range(size)]
    asked = {"model": load.model, "prompt": prompt, "max_tokens": load.lengths.draw(load.lengths.answers, chance)}
    asked |= {"temperature": TEMPERATURE, "ignore_eos": True, "return_token_ids": True, "stream": True}
    return asked | ({"speculation": load.speculation} if load.speculation else {})


async def _answer(http: httpx.AsyncClient, load: Load, asked: dict[str, Any], seen: Seen) -> None:
    began = last = time.monotonic()
    fresh, ended = True, False
    async with http.stream("POST", "/v1/completions", json=asked) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"status {reply.status_code}: {(await reply.aread())[:200]!r}")
        async for line in reply.aiter_lines():
            ended = ended or line == "data: [DONE]"
            count = 0 if ended or not line else tokens_of(line)
            if not count:
                continue
            now = time.monotonic()
            if fresh and began >= load.begin:
                seen.firsts.append(now - began)
            if load.begin <= now < load.end:
                seen.pieces.append((now - load.begin, count, math.nan if fresh else now - last))
            last, fresh = now, False
    if not ended:
        raise RuntimeError("the stream ended before its end")
    seen.finished += 1


def tokens_of(line: str) -> int:
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    return sum(len(choice.get("token_ids") or ()) for choice in event["choices"])


def shares(clients: int, processes: int) -> list[int]:
    """Clients of each process."""
    used = min(clients, processes)
    return [clients // used + (i < clients % used) for i in range(used)]
