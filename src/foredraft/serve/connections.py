"""Connections: how many there may be, and how long one may take to say what it wants. uvicorn knows neither.

A request's head must arrive within its time; so must its body, which `api/body.py` sees to. Where all connections are
taken, one that has no request under way is closed for the new one.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpProtocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol  # type: ignore[assignment]

from .settings import Limits

BACKLOG = 100  # connections taken over from the system at a time
RESERVED = BACKLOG + 64  # descriptors for what is accepted before it is counted, and for files


def most_connections(limits: Limits) -> int:
    """The operator's limit, or what the process's descriptors allow."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits.connections if allowed < 0 else max(8, min(limits.connections, allowed - RESERVED))


class LimitedProtocol(HttpProtocol):
    """One connection; `limited` makes a class of it for a server's limits."""

    most, head_seconds = 1024, 10.0

    if TYPE_CHECKING:
        transport: asyncio.Transport
        loop: asyncio.AbstractEventLoop
        cycle: Any
        connections: set[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self.idle_since = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a request has arrived, its body perhaps not, and is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            idle = [other for other in self.connections if other is not self and not other.busy]
            min(idle, key=lambda other: other.idle_since, default=self).transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self.idle_since = time.monotonic()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to wait for the rest of a head, or end it."""
        if self.busy:
            self._end_watch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._expire)

    def _end_watch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if not self.busy:
            self.transport.abort()


def limited(limits: Limits) -> type[LimitedProtocol]:
    own = {"most": most_connections(limits), "head_seconds": limits.head_seconds}
    return type("Connection", (LimitedProtocol,), own)
