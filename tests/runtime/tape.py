"""A cache of graphs for tests without CUDA: functions are taped operation by operation and replayed like a graph.

What a taped function worked out in Python, and every tensor it made, stays as it was when it was taped: replaying it
runs the same operations on the same memory again. Whatever looks at a value from the host raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from foredraft.core.host_look import looking_away
from foredraft.runtime.cuda.graphs import CapturedGraph, GraphCache

LOOKS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")


class Tape(TorchDispatchMode):
    """Notes every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Any, tuple[Any, ...], dict[str, Any], Tensor | list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):  # a view of the same memory needs no second look
            made = out if isinstance(out, Tensor) else [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.notes.append((func, args, kwargs or {}, made))
        return out

    def replay(self) -> None:
        for func, args, kwargs, made in self.notes:
            out = func(*args, **kwargs)
            if isinstance(made, Tensor):
                _keep(made, out)
            else:
                for old, new in zip(made, (x for x in tree_leaves(out) if isinstance(x, Tensor)), strict=True):
                    _keep(old, new)


def _keep(old: Tensor, new: Tensor) -> None:
    if new.data_ptr() != old.data_ptr() and new.numel():
        old.copy_(new)


class TapeGraphs(GraphCache):
    """Tapes instead of CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.disabled, self.taped, self.replayed = False, 0, 0

    def pool(self) -> Any:
        return None

    def capture(
        self, body: Callable[..., Any], inputs: Sequence[Tensor], rooms: Sequence[Sequence[int]], pool: Any
    ) -> CapturedGraph:
        static = []
        for given, room in zip(inputs, rooms, strict=True):
            own = torch.zeros(tuple(room), dtype=given.dtype)
            own[tuple(slice(size) for size in given.shape)] = given
            static.append(own)
        self.taped += 1
        with torch.no_grad(), blindfold(), Tape() as tape:
            answer = body(*static)

        def launch() -> None:
            self.replayed += 1
            tape.replay()

        return CapturedGraph(static, answer, launch, 0)

    def _evict(self) -> None:
        pass


@contextmanager
def blindfold() -> Iterator[None]:
    """Nobody may look at a value, or make a tensor from the host's lists."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a captured function looks at a value from the host, or copies from it")

    with pytest.MonkeyPatch.context() as patch:
        for name in LOOKS:
            patch.setattr(Tensor, name, refuse)
        patch.setattr(torch, "tensor", refuse)
        with looking_away():
            yield
