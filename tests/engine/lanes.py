"""Lanes that finish when a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Lagging(Future):  # type: ignore[type-arg]
    """Done after so many looks, though its result is there."""

    looks = 0

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0


class LaggingLane:
    """An adversary: how often a job is found unfinished is a function of what it has drafted."""

    def __init__(self, lag: Callable[[Any], int]) -> None:
        self.lag = lag

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        future = _Lagging()
        try:
            result = job()
            future.looks = self.lag(result)
            future.set_result(result)
        except Exception as error:  # as lanes do
            future.set_exception(error)
        return future


def first_tokens(result: Any) -> list[int]:
    """Of a drafting job: the first token of every branch; other jobs have none."""
    return [branch.tokens[0] for branches in result or [] for branch in branches]
