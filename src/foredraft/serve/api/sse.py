"""Answers on their way out: whole, or as server-sent events; and what happens when the client leaves before the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .api_errors import ApiError

Result = TypeVar("Result")


class ClientGoneError(Exception):
    """Nobody is left to answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """Do the work; give it up when the client hangs up or the time is over."""
    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(_hang_up(receive)))
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            return tasks[0].result()
        raise ClientGoneError if done else TimeoutError
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: it is called for every token


def event(document: dict[str, Any]) -> bytes:
    return f"data: {_encode(document)}\n\n".encode()


LAST_EVENT = b"data: [DONE]\n\n"


class EventStream(Response):
    """Server-sent events from a generator. `close` is called whatever happens; `seconds` bound the slowest reader."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], seconds: float, close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]  # nobody knows it yet
        self._events, self._seconds, self._close = events, seconds, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send), self._seconds)
        except (ClientGoneError, TimeoutError):
            pass  # headers are out: all that is left is to close
        finally:
            self._close()
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for part in self._events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except ApiError as error:  # too late for a status
            await send({"type": "http.response.body", "body": event(error.body), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
