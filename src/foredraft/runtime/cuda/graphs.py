"""Functions of tensors that are called again and again: on CUDA they are recorded once and replayed as one launch.

A recorded function must be pure device work: it may look at its inputs on the device only, and whatever else it reads
must be named by its key. It may change its inputs, if every call gives all of them anew or means what stands there
(`replay`). What it returns is handed back by every replay, with new numbers in the same tensors, and
holds until the same key is run again. Elsewhere than on CUDA the function is simply called: that is the reference.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
WARM_UPS = 2  # kernels are compiled and libraries choose theirs before anything is recorded; later ones need one
SHARE = 0.06  # of the device's memory, for everything that recordings hold
MOST_KEYS = 4096  # that are remembered as called, or as not to be recorded


class GraphCache:
    """Recordings of one owner, by key; those unused for longest go first when they take too much memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.off = device.type != "cuda"  # True: every function is called as it is
        self.captures = 0  # calls that were no replays, though they might have been
        self._made: OrderedDict[Hashable, CapturedGraph] = OrderedDict()
        self._calls: OrderedDict[Hashable, int] = OrderedDict()  # of functions that are not recorded yet; -1 = never
        self._pool: Any = None  # memory that recordings share whose answers are copied at once
        self._lock = threading.Lock()

    def run(
        self,
        key: Hashable,
        body: Callable[..., Answer],
        inputs: Sequence[Tensor],
        rooms: Sequence[Sequence[int]] | None = None,
        after: int = 0,
        shared: bool = False,
    ) -> Answer:
        """body(*inputs), recorded once `key` has been called more than `after` times. Inputs may lie on the host.

        rooms: shapes that inputs may grow to; a body must not mind what lies beyond those of a call.
        shared: the caller copies the answer before anything else runs, so that its memory may be shared.
        """
        if self.off:
            return body(*self._here(inputs))
        with self._lock:
            made = self._made.get(key)
            if made is None:
                self.captures += self._calls.get(key, 0) >= 0  # what cannot be recorded will be no quicker
                made = self._make(key, body, inputs, rooms, after, shared)
            if made is not None and key in self._made:
                self._made.move_to_end(key)
        if made is None:
            return body(*self._here(inputs))
        return cast(Answer, made.replay(inputs))

    def holds(self, key: Hashable) -> bool:
        """Whether a replay is at hand."""
        return key in self._made

    def replay(self, key: Hashable, inputs: Sequence[Tensor] | None = None) -> Any:
        """What is recorded, with these inputs, or with those that stand there."""
        with self._lock:
            made = self._made[key]
            self._made.move_to_end(key)
        return made.replay(() if inputs is None else inputs)

    def wish(self, key: Hashable) -> int:
        """Somebody would have called this function, but makes do with another; how often that was so."""
        with self._lock:
            self.captures += 1  # the other takes another time
            calls = self._calls.get(key, 0)
            if calls >= 0:  # else it cannot be recorded, and will go on making do
                self._calls[key] = calls = calls + 1
                self._forget()
        return calls

    def _forget(self) -> None:
        if len(self._calls) > MOST_KEYS:
            self._calls.popitem(last=False)

    def _here(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [given.to(self.device, non_blocking=True) for given in inputs]

    def _make(self, key: Hashable, body: Callable[..., Any], inputs: Sequence[Tensor], rooms: Any, after: int,
              shared: bool) -> CapturedGraph | None:  # fmt: skip
        calls = self._calls.get(key, 0)
        if 0 <= calls < after or calls < 0:
            self._calls[key] = calls + 1 if calls >= 0 else calls
            self._forget()
            return None
        if shared and self._pool is None:
            self._pool = self.pool()
        try:
            made = self.record(body, inputs, rooms or [x.shape for x in inputs], self._pool if shared else self.pool())
        except RuntimeError as error:  # no memory, or a step that cannot be recorded
            if -1 not in self._calls.values():  # one line is enough
                log.warning("%s runs unrecorded, and so may others: %s", key, str(error).splitlines()[0])
            self._calls[key] = -1
            return None
        self._calls.pop(key, None)
        self._made[key] = made
        self._evict()
        return made

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def record(
        self, body: Callable[..., Any], inputs: Sequence[Tensor], rooms: Sequence[Sequence[int]], pool: Any
    ) -> CapturedGraph:
        """Run it a few times, then once for the record."""
        # A recording made in inference mode could not be filled outside of it.
        with torch.inference_mode(False), torch.no_grad():
            before = torch.cuda.memory_reserved(self.device)
            static = [_room(given, room) for given, room in zip(self._here(inputs), rooms, strict=True)]
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                for _ in range(1 if self._made else WARM_UPS):
                    body(*static)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                answer = body(*static)
            taken = max(0, torch.cuda.memory_reserved(self.device) - before)
        return CapturedGraph(static, answer, graph.replay, taken)

    def _evict(self) -> None:
        room = SHARE * torch.cuda.get_device_properties(self.device).total_memory
        while len(self._made) > 1 and sum(made.bytes for made in self._made.values()) > room:
            self._made.popitem(last=False)


@dataclass(slots=True)
class CapturedGraph:
    """One recorded function with its inputs and its answer."""

    inputs: list[Tensor]
    answer: Any
    play: Callable[[], None]
    bytes: int

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for own, given in zip(self.inputs, inputs, strict=False):  # what is not given stays
            if given.numel():
                own[tuple(slice(size) for size in given.shape)].copy_(given, non_blocking=True)
        self.play()
        return self.answer


def _room(given: Tensor, shape: Sequence[int]) -> Tensor:
    """A buffer of this shape that begins with what is given."""
    own = torch.zeros(tuple(shape), dtype=given.dtype, device=given.device)
    own[tuple(slice(size) for size in given.shape)] = given
    return own
