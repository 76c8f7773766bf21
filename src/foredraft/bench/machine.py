"""What the machine gives and what a run takes of it: memory bandwidth, bytes of weights per pass, peak memory."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from ..models.layers.int8_linear import EightBitLinear
from ..models.quantisation.grouped_linear import GroupedLinear
from ..provenance import usable_cores
from ..runtime import Executor

COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
COPY_TIMES = 8
STEAL = 8  # which word of a line of /proc/stat


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of the fastest of a few large copies."""
    size = COPY_BYTES.get(device.type, 256 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    best = float("inf")
    for _ in range(COPY_TIMES):
        synchronise(device)
        begin = time.perf_counter()
        target.copy_(source)
        synchronise(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size / best


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(executor: Executor) -> int | None:
    """Bytes of weights that one pass reads; an untied embedding is only looked up. None = not known.

    An executor with weights in a form of its own (quantised, say) tells it by an attribute of this name.
    """
    given = getattr(executor, "weight_bytes", None)
    if given is not None:
        return int(given)
    if executor.decoder is None:
        return None
    small = [part for part in executor.decoder.modules() if isinstance(part, EightBitLinear | GroupedLinear)]
    if small:
        return sum(part.nbytes if isinstance(part, GroupedLinear) else part.weight.numel() for part in small)
    config = executor.decoder.config
    looked_up = 0 if config.tied_head else config.vocab_size * config.hidden_size
    return (config.num_parameters - looked_up) * executor.decoder.dtype.itemsize


def stolen_seconds() -> float:
    """What the host of a virtual machine took of the processors that we may use, in seconds, where it tells (steal)."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()]
    except OSError:
        return 0.0
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    return sum(int(line[STEAL]) for line in lines if line and line[0] in ours) / os.sysconf("SC_CLK_TCK")


class StolenMeter:
    """The share of the processors that the host took since `start`: nothing that runs here can make up for it."""

    def start(self) -> None:
        self._began, self._stolen = time.perf_counter(), stolen_seconds()

    def share(self) -> float:
        seconds = (time.perf_counter() - self._began) * usable_cores()
        return (stolen_seconds() - self._stolen) / seconds if seconds else 0.0


class MemoryMeter:
    """The highest memory use of this process since `start`, where the system can tell it; else since it began."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None

    def start(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # 5 = forget the high-water mark
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def host(self) -> int:
        try:
            found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        except OSError:
            found = None
        if found is not None:
            return int(found[1]) * 1024
        import resource  # not on every system, and the file above is on most

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def device(self) -> int:
        return 0 if self._cuda is None else torch.cuda.max_memory_allocated(self._cuda)
