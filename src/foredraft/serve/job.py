"""One API call inside the server: its engine requests, and the queue in which their events wait to be read.

The engine thread posts, the call's coroutine reads. The queue never holds more than the call's own answer, and posting
never waits: a slow reader costs memory of that size for as long as the call may last, and nobody any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from ..engine import Request
from ..types import Event


class Job:
    """Made on the event loop that will read it."""

    def __init__(self, requests: list[Request], client: str, arrived: float, seconds: float) -> None:
        self.requests, self.client = requests, client
        self.arrived, self.deadline = arrived, arrived + seconds  # in the time of `time.monotonic`
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def post(self, index: int, event: Event) -> None:
        """Hand over what one of the requests has written; from any thread."""
        with suppress(RuntimeError):  # the loop has closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """(which request, what it wrote) until all of them are done."""
        unfinished = len(self.requests)
        while unfinished:
            index, event = await self._events.get()
            unfinished -= event.finish_reason is not None
            yield index, event
