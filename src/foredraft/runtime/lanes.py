"""Work in flight: a lane runs jobs one after another beside the caller, on cores or on a CUDA stream of its own.

`submit` hands back a future; whoever asks for its result waits, once. A lane's jobs never overlap one another, so what
only they touch needs no lock. `NoLane` is the reference: the job is done when `submit` returns.

On a CPU the number of threads belongs to whoever calls (torch and the native library both ask for that of the calling
thread), so a lane that is given two cores takes none of the caller's. Knows no model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

Result = TypeVar("Result")
SWITCH = 2e-4  # seconds


class Span(NamedTuple):
    """Something that ran on a device for a time, in seconds of `time.perf_counter`."""

    what: str  # draft or verify
    device: str
    begin: float
    end: float


class Watch:
    """Times work on a device without stopping it: by events on a GPU, by the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.begin = device, time.perf_counter()
        self._end = 0.0
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []  # type: ignore[no-untyped-call]
        if self._events:
            self._events[0].record()

    def stop(self) -> None:
        """What was begun since ends here; on a GPU it may still be under way."""
        if self._events:
            self._events[1].record()
        self._end = time.perf_counter()

    def span(self, what: str) -> Span:
        """Once the device is done."""
        if self._events:
            self._events[1].synchronize()
            self._end = self.begin + self._events[0].elapsed_time(self._events[1]) / 1e3
        return Span(what, self.device.type, self.begin, self._end)


class Lane(Protocol):
    """Runs jobs in the order in which they come."""

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Begin a job as soon as those before it are done."""


class NoLane:
    """Every job at once, on the caller's own thread."""

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(job())
        except Exception as error:  # whoever asks for the result gets it, as from any other lane
            future.set_exception(error)
        return future


class OwnLane:
    """A thread of its own: with so many cores for work on a CPU, with a stream for work on a GPU."""

    def __init__(self, device: torch.device, threads: int = 0) -> None:
        """threads: cores of a lane on the CPU; 0 = as many as the caller has."""
        self.device, self.threads = device, threads or torch.get_num_threads()
        self.stream: torch.cuda.Stream | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="foredraft-lane")
        mine = torch.get_num_threads()
        self._worker.submit(self._settle).result()
        # Python hands over its lock every 5 ms, longer than a drafted token takes: a busy caller would stop the lane.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH))
        torch.set_num_threads(mine)  # what a thread sets last is also the number of threads that begin later

    def _settle(self) -> None:
        if self.device.type == "cuda":
            # Its kernels are short and few beside those of a large target: let them go first.
            self.stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
            return
        torch.get_num_threads()  # the first look at it would undo what is set before
        torch.set_num_threads(self.threads)

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        return self._worker.submit(self._run, job)

    def _run(self, job: Callable[[], Result]) -> Result:
        where: Any = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with torch.no_grad(), where:
            result = job()
            if self.stream is not None:
                self.stream.synchronize()
        return result


@contextmanager
def own_threads(count: int) -> Iterator[None]:
    """So many threads for the caller's work on the CPU; 0 = no change."""
    before = torch.get_num_threads()
    if count in (0, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
