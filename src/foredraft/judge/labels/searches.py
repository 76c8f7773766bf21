"""Many searches at a time: whatever they ask for is answered together, and whoever has a reply goes on at once.

A search that waits for a long continuation holds up nobody; its place is taken by the next question when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from .mining import Ask, Guess, Search, Write, Written
from .record import LabelledText

Named = tuple[str, Search]
Finished = tuple[str, list[LabelledText]]


class Target(Protocol):
    """Writes continuations, as many at a time as were begun."""

    def start(self, number: int, order: Write) -> None:
        """Take an order; its reply will bear this number."""

    def step(self) -> list[tuple[int, Written]]:
        """Work for a while; returns the orders that are done by now."""


class Drafter(Protocol):
    """Reads texts."""

    def guesses(self, asked: Sequence[Guess]) -> list[list[int]]: ...


class SearchPool:
    """Runs named searches, `at_once` of them side by side."""

    def __init__(self, searches: Iterable[Named], target: Target, drafter: Drafter, at_once: int) -> None:
        self.target, self.drafter, self.at_once = target, drafter, at_once
        self._waiting = enumerate(searches)
        self._running: dict[int, Named] = {}
        self._reading: dict[int, Guess] = {}

    def run(self) -> Iterator[Finished]:
        """Yield each question's records when its search ends."""
        yield from self._admit()
        while self._running:
            replies: Iterable[tuple[int, Any]] = self._read() if self._reading else self.target.step()
            for number, reply in replies:
                yield from self._send(number, reply)
            yield from self._admit()

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
        else:
            self.target.start(number, asked)
