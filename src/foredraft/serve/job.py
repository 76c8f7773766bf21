"""One API call inside the server: its engine requests, and the queue in which their events wait to be read.

The engine thread posts, the call's coroutine reads. The queue never holds more than the call's own answer, and posting
never waits: a slow reader costs memory of that size for as long as the call may last, and nobody any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..engine import Request
from ..types import Event
from .metrics import Meter


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

    @staticmethod
    def post(written: Sequence[tuple[Job, int, Event]]) -> None:
        """Hand over what requests of jobs have written; from any thread. Waking a loop costs, so once for all."""
        loops = {job._loop for job, _, _ in written}
        for loop in loops:
            own = [(job._events, (index, event)) for job, index, event in written if job._loop is loop]
            with suppress(RuntimeError):  # the loop has closed: nobody reads any more
                loop.call_soon_threadsafe(_put, own)

    async def events(self) -> AsyncIterator[list[tuple[int, Event]]]:
        """(which request, what it wrote), all that has come since the last look, until all of them are done."""
        unfinished = len(self.requests)
        while unfinished:
            found = [await self._events.get()]
            while not self._events.empty():
                found.append(self._events.get_nowait())
            unfinished -= sum(event.finish_reason is not None for _, event in found)
            yield found


def _put(written: list[tuple[asyncio.Queue[tuple[int, Event]], tuple[int, Event]]]) -> None:
    for queue, entry in written:
        queue.put_nowait(entry)


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request that waits or runs, and where its events go."""

    job: Job
    index: int
    request: Request
    meter: Meter
    posted: int = 0  # tokens that were handed over
    queued: bool = False  # whether the engine has it

    def missed(self) -> Event | None:
        """What the request has written but never handed over, because the step raised before its end."""
        request, sent = self.request, self.posted
        if request.sequence.generated == sent and request.finish_reason is None:
            return None
        tokens, reasons, scores = request.sequence.output[sent:], request.reasons[sent:], request.logprobs[sent:]
        return Event(request.id, tokens, reasons, scores or None, request.finish_reason)
