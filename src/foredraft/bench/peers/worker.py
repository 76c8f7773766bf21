"""A process of its own for an engine that wants its own environment, or that may take ours down with it.

It reads JSON lines and answers each with another; the first holds the engine's settings, every further one a prompt.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .base import Absent, Answer


class Died(Absent):
    """The process ended without an answer; `how` is the signal or the exit status."""

    def __init__(self, engine: str, code: int) -> None:
        self.how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        super().__init__(f"the process of {engine} ended ({self.how}); run its worker by hand to see why")


class Worker:
    """The process, and our ends of its two pipes."""

    def __init__(self, engine: str, command: list[str], environment: Mapping[str, str]) -> None:
        self._engine = engine
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise Died(self._engine, process.returncode)
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            self.close()
            raise Absent(f"{self._engine}: {said['error']}")
        return said

    def close(self) -> None:
        """End the process; a second call does nothing."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what was left to write has no reader any more
                    stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(slots=True)
class WorkerPeer:
    """One way of decoding of a worker's engine: a prompt, with what else the worker has to be told."""

    name: str
    weights: str
    version: str
    worker: Worker
    request: dict[str, Any]

    def answer(self, prompt: list[int]) -> Answer:
        said = self.worker.ask(self.request | {"ids": prompt})
        return Answer(said["ids"], [(seconds, count) for seconds, count in said["times"]])

    def close(self) -> None:
        self.worker.close()
