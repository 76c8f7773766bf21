"""Innocent clients with and without attackers: what do they notice, and what does the server's memory do?

Two phases that differ in one thing: where the attackers' requests go. In the first they go to a process that refuses
them unread (`sink.py`), so that attackers and network cost the machine the same; in the second to the server.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from .attackers import TOKENS, check_address
from .stolen import Stolen

CLIENTS = 4
SAMPLE_SECONDS = 2.0  # between two looks at the server's memory
WARM_SHARE = 0.2  # of the attack, after which memory must be flat
FLAT_MIB, FLAT_SHARE = 16.0, 0.03  # growth from then on that counts as none: so many MiB, or such a share
WORST_RATIO = 1.5  # of the innocent clients' p99 with attackers to that without
DISTURBED = 0.05  # share of the processors that the machine's host took during an answer which is then left out
SUBJECTS = ("rivers", "bread", "clocks", "whales", "bridges", "tea", "volcanoes", "chess")
TASKS = ("Explain to a child what is special about {}.", "List facts about {}.", "Write a story about {}.")
HERE = Path(__file__).parent


def quantile(values: Sequence[float], share: float) -> float | None:
    """None where there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass
class Phase:
    """What innocent clients got, and when."""

    began: float = field(default_factory=time.monotonic)
    # (seconds since the beginning, seconds it took, share of the processors that the machine's host took meanwhile)
    answers: list[tuple[float, float, float]] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)  # (seconds since the beginning, MiB)
    lost: list[str] = field(default_factory=list)  # answers that did not come, or not whole, or not the same
    refused: int = 0  # 429: told to come back later
    seconds: float = 0.0

    def quantile(self, share: float, disturbed: float = DISTURBED) -> float | None:
        """Of the time that answers took, without those of which the host took more than `disturbed`."""
        return quantile([took for _, took, stolen in self.answers if stolen <= disturbed], share)

    def row(self) -> dict[str, Any]:
        disturbed = sum(stolen > DISTURBED for _, _, stolen in self.answers)
        found = {"seconds": self.seconds, "answers": len(self.answers), "lost": len(self.lost)}
        found |= {"refused": self.refused, "disturbed": disturbed, "p50_seconds": self.quantile(0.5)}
        found |= {"p90_seconds": self.quantile(0.9), "p99_seconds": self.quantile(0.99)}
        return found | {"slowest_seconds": self.quantile(1.0), "p99_of_all_seconds": self.quantile(0.99, 1.0)}


class Soak:
    """One run against one server."""

    def __init__(self, url: str, headers: dict[str, str], attackers: dict[str, str]) -> None:
        check_address(url)
        self.url, self.headers, self.attackers = url, headers, attackers
        self.expected: dict[str, list[int]] = {}
        self.model = ""
        self.stolen = Stolen()

    async def run(self, quiet_seconds: float, attack_seconds: float) -> dict[str, Any]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=120, limits=limits) as http:
            self.model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
            for prompt in (task.format(subject) for subject in SUBJECTS for task in TASKS):
                self.expected[prompt] = (await self.ask(http, prompt)).json()["choices"][0]["token_ids"]
            with sink() as port, self.attack(f"http://127.0.0.1:{port}", {}):
                quiet = await self.phase(http, quiet_seconds)
            outcomes: dict[str, int] = {}
            with self.attack(self.url, outcomes):
                attacked = await self.phase(http, attack_seconds)
                health = (await http.get("/health")).status_code
            failed = complaints(quiet, attacked, health)
        return {"quiet": vars(quiet), "attacked": vars(attacked), "attackers": outcomes, "failed": failed} | figures(
            quiet, attacked
        )

    @contextmanager
    def attack(self, url: str, outcomes: dict[str, int]) -> Iterator[None]:
        """Attackers at work; what became of them is in `outcomes` at the end."""
        options = json.dumps({"url": url, "headers": self.attackers, "model": self.model})
        with module("soak.attackers", options) as process:
            yield
            process.terminate()
            outcomes |= json.loads(process.communicate(timeout=60)[0])

    async def phase(self, http: httpx.AsyncClient, seconds: float) -> Phase:
        found = Phase()
        watchers = [asyncio.create_task(work) for work in (self.watch(http, found), self.stolen.watch())]
        await asyncio.gather(*(self.innocent(http, found, number, seconds) for number in range(CLIENTS)))
        for watcher in watchers:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
        found.seconds = time.monotonic() - found.began
        return found

    async def innocent(self, http: httpx.AsyncClient, phase: Phase, number: int, seconds: float) -> None:
        """One client: question after question, each with its known answer."""
        questions = list(self.expected)
        while (begun := time.monotonic()) < phase.began + seconds:
            prompt = questions[number % len(questions)]
            number += CLIENTS + 1
            try:
                reply = await self.ask(http, prompt)
            except httpx.HTTPError as error:
                phase.lost.append(repr(error)[:200])
                continue
            if reply.status_code == 429:
                phase.refused += 1
                await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
            elif reply.status_code != 200:
                phase.lost.append(f"{reply.status_code}: {reply.text[:200]}")
            else:
                ended = time.monotonic()
                phase.answers.append((begun - phase.began, ended - begun, self.stolen.share(begun, ended)))
                if reply.json()["choices"][0]["token_ids"] != self.expected[prompt]:
                    phase.lost.append("the tokens differ")

    async def ask(self, http: httpx.AsyncClient, prompt: str) -> httpx.Response:
        body = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        return await http.post("/v1/completions", json=body | {"ignore_eos": True, "return_token_ids": True})

    async def watch(self, http: httpx.AsyncClient, phase: Phase) -> None:
        name = "process_resident_memory_bytes "
        while True:
            with suppress(httpx.HTTPError):
                page = (await http.get("/metrics")).text
                held = next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(name)), 0.0)
                phase.memory.append((time.monotonic() - phase.began, held / 2**20))
            await asyncio.sleep(SAMPLE_SECONDS)


@contextmanager
def module(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=HERE.parent, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def sink() -> Iterator[int]:
    with module("soak.sink") as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def figures(quiet: Phase, attacked: Phase) -> dict[str, Any]:
    slow, usual = attacked.quantile(0.99), quiet.quantile(0.99)
    found: dict[str, Any] = {"rows": {"quiet": quiet.row(), "attacked": attacked.row()}}
    return found | {"p99_ratio": slow / usual if slow and usual else None, "mib": growth(attacked)}


def growth(phase: Phase) -> dict[str, float]:
    """Memory when the attack began, once everything has been used, and at its end: means over a tenth of the time."""

    def mean(begin: float, end: float) -> float:
        inside = [held for at, held in phase.memory if begin * phase.seconds <= at <= end * phase.seconds]
        return sum(inside) / len(inside) if inside else 0.0

    start = phase.memory[0][1] if phase.memory else 0.0
    return {"start": start, "warm": mean(WARM_SHARE, WARM_SHARE + 0.1), "end": mean(0.9, 1.0)}


def complaints(quiet: Phase, attacked: Phase, health: int) -> list[str]:
    """Why the test has failed, a line each."""
    found = [f"{len(phase.lost)} answers lost: {phase.lost[0]}" for phase in (quiet, attacked) if phase.lost]
    ratio, mib = figures(quiet, attacked)["p99_ratio"], growth(attacked)
    if health != 200:
        found.append(f"/health says {health}")
    if ratio is None or ratio > WORST_RATIO:
        found.append("no answers came" if ratio is None else f"p99 is {ratio:.2f} times as long")
    if mib["end"] > mib["warm"] + max(FLAT_MIB, FLAT_SHARE * mib["warm"]):
        found.append(f"memory has grown from {mib['warm']:.0f} to {mib['end']:.0f} MiB")
    return found
