"""Listening, signals and the end: a server that finishes what it has begun, for a while, and says what it has cut."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer
from types import FrameType
from typing import NoReturn

import uvicorn

from ..errors import ForedraftError
from .app import JOIN_SECONDS, create_app
from .connections import BACKLOG, limited
from .engine_thread import State
from .log_limit import limit_logs
from .service import Service
from .upkeep.json_log import log_as_json
from .upkeep.reload import on_hangup

LAST_WORDS = 3  # seconds for replies to reach their readers once nothing runs any more
MARGIN = 2.0  # seconds for the rest of the end
WATCH_SECONDS = 1.0  # between two looks at the engine


def run(service: Service, host: str, port: int, access_log: bool = False) -> int:
    """Serve until a signal to stop (SIGTERM or SIGINT; twice = at once). Returns the exit code."""
    listener = listen(host, port)
    limit_logs()
    server = Server(configure(service, access_log), service, listener)
    if service.settings.json_log:
        log_as_json()
    with watched(service), on_hangup(service, say):
        server.run(sockets=[listener])
    worker = service.worker
    if worker.failure is not None:
        raise worker.failure
    if not worker.join(JOIN_SECONDS):  # still loading, or stuck in a step: threads cannot be stopped
        end("stopped at once")
    say(f"stopped; {worker.finished} answers finished after the signal, {worker.cut} cut")
    return 0


def configure(service: Service, access_log: bool = False) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        http=limited(service.limits),
        ws="none",
        backlog=BACKLOG,
        log_level="warning",
        access_log=access_log,
        server_header=False,
        timeout_graceful_shutdown=LAST_WORDS,
    )


@contextmanager
def watched(service: Service) -> Iterator[None]:
    """End the process if a step of the engine is stuck for good: no thread can be stopped, and a supervisor can start
    another process. /health has been red for as long as a step may take by then. Code that keeps the interpreter's
    lock stops this thread as well: then faulthandler's own, which needs no lock, is not put off any more.
    """
    most, over = service.limits.step_seconds, Event()

    def put_off() -> None:
        faulthandler.dump_traceback_later(2 * most + WATCH_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)

    def look() -> None:
        while not over.wait(WATCH_SECONDS):
            put_off()
            if service.worker.stuck_for > most:
                end(f"a step of the engine has not ended for {2 * most:g} s; giving up")

    put_off()  # before anything can get stuck: this thread may never get to its first look
    thread = Thread(target=look, name="foredraft-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


def end(line: str) -> NoReturn:
    """At once, whatever threads are doing."""
    say(line)
    os._exit(1)


def listen(host: str, port: int) -> socket.socket:
    """An open socket; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            reason += "; name another port with --port"
        raise ForedraftError(f"cannot listen on {host}:{port}: {reason}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, names: list[str] | None) -> tuple[str, ...]:
    """The names by which clients may call: those given, else on loopback its own, else any. Where a web page's name is
    rebound to the loopback address, the browser still sends the page's name.
    """
    if names:
        return tuple(names)
    return ("localhost", "127.0.0.1", host, "[") if is_loopback(host) else ()  # starlette cuts [::1]:8000 at a colon


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
        self._end_for_certain()
        if self._loop is None or self._service.state in (State.LOADING, State.DRAINING):
            self.should_exit = True
        else:  # on the loop, where nobody is in the middle of submitting a request
            self._loop.call_soon_threadsafe(self._drain)

    def _end_for_certain(self) -> None:
        """The signal ends the process, whatever the event loop and the engine are doing."""
        seconds = self._service.limits.grace + LAST_WORDS + 2 * MARGIN
        timer = Timer(seconds, end, [f"did not stop within {seconds:g} s; ended"])
        timer.daemon = True
        timer.start()

    def _drain(self) -> None:
        grace = self._service.limits.grace
        say(f"stopping: {self._service.admission.held} answers have {grace:g} s to finish")
        self._service.worker.drain(grace)
        assert self._loop is not None
        self._loop.call_later(grace + MARGIN, setattr, self, "should_exit", True)  # the engine may be stuck

    def _heard(self, state: State) -> None:
        """From the engine's thread."""
        if state is State.READY:
            host, port = self._listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            served, name = self._service.worker.methods.served, self._service.settings.model_name
            say(f"serving {name} at http://{host}:{port}/v1, method {served.name} + {served.rule.name}")
            if not self._service.settings.api_keys and not is_loopback(host.strip("[]")):
                say("no API keys are set: whoever reaches this address may use the model")
        elif state is State.STOPPED:
            self.should_exit = True


def say(line: str) -> None:
    print(f"foredraft: {line}", file=sys.stderr, flush=True)
