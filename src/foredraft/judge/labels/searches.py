"""Many searches at a time: whatever they ask for is answered together, and whoever has a reply goes on at once.

A search that waits for a long continuation holds up nobody; its place is taken by the next question when it ends.
Final answers that take a program to run are found in threads, while the models go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from math import inf
from typing import Any, Protocol

from ...provenance import usable_cores
from .mining import Ask, Guess, Mark, Over, Search, Write, Written
from .record import LabelledText

Named = tuple[str, Search]
Finished = tuple[str, list[LabelledText]]


class Target(Protocol):
    """Writes continuations, as many at a time as were begun."""

    def start(self, number: int, order: Write) -> None:
        """Take an order; its reply will bear this number."""

    def step(self) -> list[tuple[int, Written]]:
        """Work for a while; returns the orders that are done by now."""

    def forget(self) -> None:
        """Drop all orders."""


class Drafter(Protocol):
    """Reads texts."""

    def guesses(self, asked: Sequence[Guess]) -> list[list[int]]: ...


class SearchPool:
    """Runs named searches, `at_once` of them side by side, for `seconds` at most; then each returns what it has."""

    def __init__(
        self, searches: Iterable[Named], target: Target, drafter: Drafter, at_once: int, seconds: float = inf
    ) -> None:
        self.target, self.drafter, self.at_once = target, drafter, at_once
        self.end = time.monotonic() + seconds
        self._waiting = enumerate(searches)
        self._running: dict[int, Named] = {}
        self._writing: set[int] = set()
        self._reading: dict[int, Guess] = {}
        self._marking: dict[Future[str | None], int] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._together = max(1, at_once // 8)  # texts worth a pass of the drafter, while the target has other work

    def run(self) -> Iterator[Finished]:
        """Yield each question's records when its search ends."""
        with ThreadPoolExecutor(usable_cores()) as self._threads:
            yield from self._admit()
            while self._running and time.monotonic() < self.end:
                for number, reply in self._replies():
                    yield from self._send(number, reply)
                yield from self._admit()
            yield from self._stop()

    def _replies(self) -> Iterable[tuple[int, Any]]:
        if self._reading and (len(self._reading) >= self._together or not (self._writing or self._marking)):
            return self._read()
        if self._writing:
            written = self.target.step()
            self._writing -= {number for number, _ in written}
            return [*written, *self._marked()]
        return self._marked(hurry=False)

    def _admit(self) -> Iterator[Finished]:
        while len(self._running) < self.at_once:
            number, named = next(self._waiting, (-1, None))
            if named is None:
                return
            self._running[number] = named
            yield from self._send(number, None)

    def _read(self) -> list[tuple[int, list[int]]]:
        """The drafter's guesses for all who asked."""
        asked, self._reading = self._reading, {}
        return list(zip(asked, self.drafter.guesses(list(asked.values())), strict=True))

    def _marked(self, hurry: bool = True) -> list[tuple[int, str | None]]:
        """Final answers that are found by now; without hurry at least one."""
        if not hurry:
            wait(self._marking, return_when=FIRST_COMPLETED)
        done = [future for future in self._marking if future.done()]
        return [(self._marking.pop(future), future.result()) for future in done]

    def _send(self, number: int, reply: Any) -> Iterator[Finished]:
        name, search = self._running[number]
        try:
            self._order(number, search.send(reply))
        except StopIteration as end:
            del self._running[number]
            yield name, end.value

    def _order(self, number: int, asked: Ask) -> None:
        if isinstance(asked, Guess):
            self._reading[number] = asked
        elif isinstance(asked, Mark):
            assert self._threads is not None
            self._marking[self._threads.submit(asked.answer, asked.tokens)] = number
        else:
            self._writing.add(number)
            self.target.start(number, asked)

    def _stop(self) -> Iterator[Finished]:
        """The time is over: what was decided stands; questions without an answer of the target's own stay open."""
        self.target.forget()
        for name, search in self._running.values():
            try:
                search.throw(Over())
            except StopIteration as end:
                yield name, end.value
            except Over:
                continue
