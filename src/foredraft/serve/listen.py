"""Listening, signals and the end: a server that finishes what it has begun, for a while, and says what it has cut."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from types import FrameType

import uvicorn

from ..errors import ForedraftError
from .app import JOIN_SECONDS, create_app
from .engine_thread import State
from .service import Service

BACKLOG = 2048
LAST_WORDS = 5  # seconds for replies to reach their readers once nothing runs any more


def run(service: Service, host: str, port: int, access_log: bool = False) -> int:
    """Serve until told to stop (SIGTERM or SIGINT; twice = at once). Returns the exit code."""
    listener = listen(host, port)
    config = uvicorn.Config(
        create_app(service), log_level="warning", access_log=access_log, timeout_graceful_shutdown=LAST_WORDS
    )
    server = Server(config, service, listener)
    server.run(sockets=[listener])
    worker = service.worker
    if worker.failure is not None:
        raise worker.failure
    if not worker.join(JOIN_SECONDS):  # still loading, or stuck in a step: threads cannot be stopped
        say("stopped at once")
        sys.stderr.flush()
        os._exit(1)
    say(f"stopped; {worker.finished} answers finished after the signal, {worker.cut} cut")
    return 0


def listen(host: str, port: int) -> socket.socket:
    """An open socket; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ForedraftError(f"cannot listen on {host}:{port}: {reason}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server(uvicorn.Server):
    """uvicorn, except that a signal begins a drain: the port stays open meanwhile and /health says so."""

    def __init__(self, config: uvicorn.Config, service: Service, listener: socket.socket) -> None:
        super().__init__(config)
        self._service, self._listener = service, listener
        self._loop: asyncio.AbstractEventLoop | None = None
        service.worker.on_change = self._heard

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None or self._service.state in (State.LOADING, State.DRAINING):
            self.should_exit = True
        else:  # on the loop, where nobody is in the middle of submitting a request
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        grace = self._service.limits.grace
        say(f"stopping: {self._service.gate.held} answers have {grace:g} s to finish")
        self._service.worker.drain(grace)

    def _heard(self, state: State) -> None:
        """From the engine's thread."""
        if state is State.READY:
            host, port = self._listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            menu, name = self._service.worker.menu, self._service.settings.model_name
            say(f"serving {name} at http://{host}:{port}/v1, method {menu.served.name} + {menu.served.rule.name}")
        elif state is State.STOPPED:
            self.should_exit = True


def say(line: str) -> None:
    print(f"foredraft: {line}", file=sys.stderr, flush=True)
