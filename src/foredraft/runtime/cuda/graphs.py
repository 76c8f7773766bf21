"""CUDA graphs by key: a function of tensors that is called again and again is captured once and replayed as one launch.

A captured function must be pure device work: it may look at its inputs on the device only, and whatever else it reads
must be named by its key. It may change its inputs, if every call gives all of them again or wants what is there
(`replay`). What it returns is handed back by every replay, with new numbers in the same tensors, and holds until the
same key is run again. On other devices the function is simply called: that is the reference. Knows no model.
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
WARM_UPS = 2  # before the first capture: kernels are compiled and libraries choose theirs; later captures need one
SHARE = 0.06  # of the device's memory, for everything that graphs hold
MOST_KEYS = 4096  # that are remembered as called, or as not to be captured


class GraphCache:
    """The graphs of one owner, by key; the least recently used are evicted when they take too much memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.disabled = device.type != "cuda"  # True: every function is called as it is
        self.captures = 0  # calls that were no replays, though they might have been
        self._graphs: OrderedDict[Hashable, CapturedGraph] = OrderedDict()
        self._calls: OrderedDict[Hashable, int] = OrderedDict()  # of functions that are not captured yet; -1 = never
        self._pool: Any = None  # memory shared by graphs whose answers are copied at once
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
        """body(*inputs), captured once `key` has been called more than `after` times. Inputs may lie on the host.

        rooms: shapes that inputs may grow to; a body must not depend on what lies beyond those of a call.
        shared: the caller copies the answer before anything else runs, so that its memory may be shared.
        """
        if self.disabled:
            return body(*self._here(inputs))
        with self._lock:
            graph = self._graphs.get(key)
            if graph is None:
                self.captures += self._calls.get(key, 0) >= 0  # what cannot be captured will be no quicker
                graph = self._make(key, body, inputs, rooms, after, shared)
            if graph is not None and key in self._graphs:
                self._graphs.move_to_end(key)
        if graph is None:
            return body(*self._here(inputs))
        return cast(Answer, graph.replay(inputs))

    def holds(self, key: Hashable) -> bool:
        """Whether it can be replayed."""
        return key in self._graphs

    def inputs(self, key: Hashable) -> list[Tensor]:
        """What a captured graph reads. Whoever changes it does so between two replays, on their stream."""
        return self._graphs[key].inputs

    def replay(self, key: Hashable, inputs: Sequence[Tensor] | None = None) -> Any:
        """Replay a captured graph with these inputs, or with those that are there."""
        with self._lock:
            graph = self._graphs[key]
            self._graphs.move_to_end(key)
        return graph.replay(() if inputs is None else inputs)

    def count_miss(self, key: Hashable) -> int:
        """Somebody would have called this function, but uses another graph instead; how often that was so."""
        with self._lock:
            self.captures += 1  # the other takes another time
            calls = self._calls.get(key, 0)
            if calls >= 0:  # else it cannot be captured
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
        shapes, pool = rooms or [x.shape for x in inputs], self._pool if shared else self.pool()
        try:
            graph = self.capture(body, inputs, shapes, pool)
        except RuntimeError as error:  # no memory, or a step that cannot be captured
            if -1 not in self._calls.values():  # one line is enough
                log.warning("%s runs without a CUDA graph, and so may others: %s", key, str(error).splitlines()[0])
            self._calls[key] = -1
            return None
        self._calls.pop(key, None)
        self._graphs[key] = graph
        self._evict()
        return graph

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(
        self, body: Callable[..., Any], inputs: Sequence[Tensor], rooms: Sequence[Sequence[int]], pool: Any
    ) -> CapturedGraph:
        """Warm up, then run it once under capture."""
        # A graph captured in inference mode could not be given inputs outside of it.
        with torch.inference_mode(False), torch.no_grad():
            before = torch.cuda.memory_reserved(self.device)
            static = [_room(given, room) for given, room in zip(self._here(inputs), rooms, strict=True)]
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                for _ in range(1 if self._graphs else WARM_UPS):
                    body(*static)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                answer = body(*static)
            taken = max(0, torch.cuda.memory_reserved(self.device) - before)
        return CapturedGraph(static, answer, graph.replay, taken)

    def _evict(self) -> None:
        room = SHARE * torch.cuda.get_device_properties(self.device).total_memory
        while len(self._graphs) > 1 and sum(graph.bytes for graph in self._graphs.values()) > room:
            self._graphs.popitem(last=False)


@dataclass(slots=True)
class CapturedGraph:
    """One captured function with its inputs and its answer."""

    inputs: list[Tensor]
    answer: Any
    launch: Callable[[], None]
    bytes: int

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for own, given in zip(self.inputs, inputs, strict=False):  # what is not given stays
            if given.numel():
                own[tuple(slice(size) for size in given.shape)].copy_(given, non_blocking=True)
        self.launch()
        return self.answer


def _room(given: Tensor, shape: Sequence[int]) -> Tensor:
    """A buffer of this shape that begins with what is given."""
    own = torch.zeros(tuple(shape), dtype=given.dtype, device=given.device)
    own[tuple(slice(size) for size in given.shape)] = given
    return own
