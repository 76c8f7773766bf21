"""Tries schemas in another process before this one compiles them: a schema of a kilobyte may ask for gigabytes.

Knows how to talk to `schema_compiler.py`; knows no grammars.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ..admission import too_busy

Outcome = dict[str, Any]
SCRIPT = Path(__file__).with_name("schema_compiler.py")
PENDING = 2  # schemas of one client that may wait to be tried
KEPT = 1024  # outcomes
REST = 10  # times the seconds of an attempt: a client whose schema took them all waits so long with its next one


class SchemaProbe:
    """One schema at a time, first come, first served, on a thread of its own; used from the event loop."""

    def __init__(self, seconds: int, megabytes: int) -> None:
        self._limits = {"seconds": seconds, "megabytes": megabytes}
        self._thread = ThreadPoolExecutor(1, "foredraft-schemas")
        self._process: subprocess.Popen[str] | None = None
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._pending: Counter[str] = Counter()
        self._rests: dict[str, float] = {}  # client -> when it may have a new schema tried again

    async def check(self, schema: str, client: str, tokens: dict[str, Any]) -> int:
        """The bytes that the compiled schema takes; a UsageError if it takes too much, or is wrong."""
        if schema not in self._known:
            self._check_client(client)
            self._pending[client] += 1
            loop, asked = asyncio.get_running_loop(), self._thread.submit(self._ask, schema, tokens)

            def over(asked: Future[Outcome]) -> None:  # on the probe's thread, before whoever waits hears of it
                with suppress(RuntimeError):  # the loop has closed
                    loop.call_soon_threadsafe(self._note, schema, client, asked)

            asked.add_done_callback(over)
            found = await asyncio.wrap_future(asked)
        else:
            found = self._known[schema]
        if "error" in found:
            raise UsageError(f"the schema cannot be used: {found['error']}")
        return int(found["kilobytes"]) << 10

    def _note(self, schema: str, client: str, asked: Future[Outcome]) -> None:
        """An attempt is over, or was called off before it began. It counts whether or not the client waited for it:
        otherwise whoever hangs up could have the next one tried at once.
        """
        self._pending[client] -= 1
        if asked.cancelled() or asked.exception() is not None or asked.result().get("ended"):
            return
        self._known[schema] = asked.result()
        if asked.result().get("costly"):
            self._rests[client] = time.monotonic() + REST * self._limits["seconds"]
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    def size(self, schema: str) -> int:
        """The bytes that a compiled schema takes, as far as it is known; from any thread."""
        return int(self._known.get(schema, {}).get("kilobytes", 0)) << 10

    def _check_client(self, client: str) -> None:
        """Refuse a client that has schemas waiting, or whose last one was a bomb; known schemas are not asked about."""
        if self._pending[client] >= PENDING:
            raise too_busy("schemas of this client are being compiled already", self._limits["seconds"])
        rest = self._rests.get(client, 0.0) - time.monotonic()
        if rest > 0:
            raise too_busy("a schema of this client took all the time or memory that there is for one", rest)

    def warm_up(self, tokens: dict[str, Any]) -> None:
        """Start the process before a client waits for it."""
        self._thread.submit(self._ask, "{}", tokens)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ask(self, schema: str, tokens: dict[str, Any]) -> Outcome:
        """On the probe's thread. Bounded: the process bounds every attempt itself."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start(tokens)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(schema) + "\n")
            self._process.stdin.flush()
            said: Outcome = json.loads(self._process.stdout.readline())
            return said
        except (OSError, ValueError):
            with suppress(OSError), self._process:  # which closes its pipes
                self._process.kill()
            why = "this model's tokenizer cannot be held to a schema, or the process that tries it was ended"
            return {"error": why, "ended": True}  # by what may have been no fault of the schema

    def _start(self, tokens: dict[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(SCRIPT)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"tokens": tokens} | self._limits) + "\n")
        return process
