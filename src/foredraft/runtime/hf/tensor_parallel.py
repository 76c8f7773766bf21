"""One Hugging Face model over several processes, started by torchrun: transformers cuts every layer among them.

Process 0 leads: it runs the engine, the drafters and whatever asks for text, and tells the others each call of its
executor before it makes it. They make the same call on their part of the weights and of the K/V cache, and know nothing
else: no rule, no drafter, no clock. So any method works, and processes cannot disagree on what comes next.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ForedraftError, UsageError
from ..base import Output, Rows
from ..process_group import join_group
from .executor import HFExecutor, Snapshot

log = logging.getLogger(__name__)
FOREVER = timedelta(days=365)  # a server may wait long for its next request
END = "end"


class Held:
    """A snapshot that every process keeps a part of."""

    def __init__(self, number: int) -> None:
        self.number = number


class TensorParallelExecutor(HFExecutor):
    """What the engine sees on process 0; `follow` is all that the others do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.rank = dist.get_rank()
        self._calls = dist.new_group(backend="gloo", timeout=FOREVER)
        self._within = False  # calls that a call makes are everybody's own
        self._kept: dict[int, Snapshot] = {}
        self._gone: list[int] = []
        super().__init__(*args, **options)
        self.name = f"{self.name}-x{dist.get_world_size()}"
        if self.rank == 0:
            atexit.register(self.end)

    # --- process 0 ----------------------------------------------------------------------------------------------------

    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        found: list[dict[int, Tensor]] = self._call("prefill", list(slots), [list(t) for t in tokens], tuple(taps))
        return found

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        found: Output = self._call("forward", rows, tuple(taps), logits)
        return found

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        found: Output = self._call("forward_embeds", rows, embeds, tuple(taps), logits)
        return found

    def embed(self, token: Tensor) -> Tensor:
        found: Tensor = self._call("embed", token)
        return found

    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        self._call("commit", list(slots), list(counts), keep)

    def rollback(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self._call("rollback", list(slots), list(lengths))

    def snapshot(self, slot: int) -> Any:
        held = Held(max(self._kept, default=0) + 1)
        self._call("_store", held.number, slot)
        weakref.finalize(held, self._gone.append, held.number)
        return held

    def restore(self, slot: int, snapshot: Any) -> None:
        self._call("_put_back", slot, snapshot.number)

    def end(self) -> None:
        """Let the others go."""
        with suppress(RuntimeError):  # they are gone already
            self._tell(END)

    def _call(self, name: str, *given: Any) -> Any:
        outermost, self._within = not self._within, True
        if not outermost:
            return self._own(name)(*given)
        try:
            if self.rank == 0:
                self._tell(name, *given)
            return self._own(name)(*given)
        finally:
            self._within = False

    def _own(self, name: str) -> Any:
        return getattr(self, name) if name.startswith("_") else getattr(super(), name)

    def _tell(self, name: str, *given: Any) -> None:
        gone, self._gone[:] = list(self._gone), []
        self._drop(gone)
        dist.broadcast_object_list([(name, moved(given, torch.device("cpu")), gone)], 0, self._calls)

    # --- all processes ------------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """Of the whole model, before anybody leads."""
        self._within = True
        super().prove()
        self._within = False

    def follow(self) -> None:
        """Make the calls of process 0 until it ends."""
        while True:
            heard: list[Any] = [None]
            dist.broadcast_object_list(heard, 0, self._calls)
            name, given, gone = heard[0]
            self._drop(gone)
            if name == END:
                return
            try:
                self._call(name, *moved(given, self.device))
            except Exception as error:  # process 0 refuses the same call, before any pass, and goes on
                log.info("a call of process 0 was refused: %s", error)

    def _store(self, number: int, slot: int) -> None:
        self._kept[number] = super().snapshot(slot)

    def _put_back(self, slot: int, number: int) -> None:
        super().restore(slot, self._kept[number])

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            del self._kept[number]


def moved(value: Any, device: torch.device) -> Any:
    """The same, with tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Rows):
        parent = None if value.parent is None else value.parent.to(device)
        return replace(value, token=value.token.to(device), depth=value.depth.to(device), parent=parent)
    return tuple(moved(each, device) for each in value) if isinstance(value, tuple) else value


def load_part(folder: Path, dtype: torch.dtype, slots: int, max_length: int | None) -> TensorParallelExecutor:
    """This process's part of a model. On other processes than the first it never comes back: they follow it and end."""
    _join()
    from transformers.distributed.configuration_utils import DistributedConfig

    plan = DistributedConfig(tp_plan="auto")
    executor = TensorParallelExecutor.from_folder(
        folder, dtype, slots=slots, max_length=max_length, distributed_config=plan
    )
    if executor.rank:
        executor.follow()
        raise SystemExit(0)
    return executor


def _join() -> None:
    """Meet the other processes, each with a GPU of its own if there are any."""
    if "LOCAL_RANK" not in os.environ:
        raise UsageError(
            "--device-map tensor needs a process for every part: torchrun --nproc-per-node N -m foredraft .."
        )
    cuda, here = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    if cuda and here >= torch.cuda.device_count():
        raise ForedraftError(f"process {here} has no GPU of its own: there are {torch.cuda.device_count()}")
    if cuda:
        torch.cuda.set_device(here)
    join_group(cuda)
