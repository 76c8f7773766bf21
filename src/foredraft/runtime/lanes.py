"""Work in flight: a lane runs jobs one after another beside the caller, on cores or on a CUDA stream of its own.

`submit` hands back a future; whoever asks for its result waits, once. A lane's jobs never overlap one another, so what
only they touch needs no lock. `NoLane` is the reference: the job is done when `submit` returns.

On a CPU the number of threads belongs to whoever calls (torch and the native library both ask for that of the calling
thread), so a lane that is given two cores takes none of the caller's. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch

Result = TypeVar("Result")


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
        torch.set_num_threads(mine)  # what a thread sets last is also the number of threads that begin later

    def _settle(self) -> None:
        if self.device.type == "cuda":
            # Its kernels are short and few beside those of a large target: let them go first.
            self.stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
            return
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
