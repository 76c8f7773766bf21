"""`foredraft serve` as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread


@dataclass
class Process:
    """A running server, where it is, and what it has said so far."""

    popen: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    url: str = ""
    ready: Event = field(default_factory=Event)

    def listen(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.said.append(line)
            found = re.search(r"serving \S+ at (http://\S+)/v1", line)
            if found:
                self.url = found[1]
                self.ready.set()
        self.ready.set()

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.popen.send_signal(number)


@contextmanager
def serve(*argv: str) -> Iterator[Process]:
    """`foredraft serve` at a free port, ready; killed at the end if it still runs."""
    with started("foredraft", "serve", *argv, "--port", "0", "--dtype", "fp32") as process:
        yield process


@contextmanager
def started(*module: str) -> Iterator[Process]:
    """A module that serves, ready; killed at the end if it still runs."""
    command = [sys.executable, "-m", *module]
    process = Process(subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
    listener = Thread(target=process.listen)
    listener.start()
    try:
        assert process.ready.wait(300)
        assert process.url, "".join(process.said)
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()
        listener.join()
        assert process.popen.stderr is not None
        process.popen.stderr.close()
