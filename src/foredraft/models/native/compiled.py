"""The compiled library: built once per machine and source with the system's C++ compiler, kept in the cache folder.

Where there is no compiler, or no CPU with bf16 products, `compiled` is None and one line in the log says why.
FOREDRAFT_NATIVE=0 turns it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..load.folders import cache_home
from .structs import Pass, Weight

HERE = Path(__file__).parent
SOURCES = ("tile.h", "eight.h", "product.h", "attention.h", "largest.h", "decoder.cpp")
# No contraction: a level of a grid is a product and a sum, each rounded, as where the weights were made.
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-std=c++17", "-fPIC", "-fopenmp")
SWITCH = "FOREDRAFT_NATIVE"
MOST = 16  # entries of a row that `largest` and `likeliest` look for
log = logging.getLogger("foredraft")

_int, _pointer, _float = ctypes.c_int32, ctypes.c_void_p, ctypes.c_float


class Compiled:
    """What the library can do. Tensors are contiguous bf16 on the CPU unless said."""

    def __init__(self, path: Path) -> None:
        self._code = ctypes.CDLL(str(path))
        self._code.fd_layers.argtypes = [ctypes.POINTER(Pass)]
        weight = ctypes.POINTER(Weight)
        self._code.fd_linear.argtypes = [_pointer, _int, weight, _pointer, _pointer, _int, _int]
        self._code.fd_norm.argtypes = [_pointer, _pointer, _float, _int, _int, _pointer]
        self._code.fd_largest.argtypes = [_pointer, _int, _int, _int, _pointer, _pointer, _int]
        search = self._code.fd_likeliest
        search.argtypes = [_pointer, _int, _int, _int, _pointer, _float, _pointer, _pointer, _int]
        if not self._code.fd_ready():
            raise OSError("the kernel refuses tile registers")

    def layers(self, order: Pass) -> None:
        """Send rows through layers, and on to their logits where the pass has a tail."""
        if not self._code.fd_layers(ctypes.byref(order)):
            raise IndexError("a token lies outside the vocabulary")

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool) -> Tensor:
        """x [.., depth] -> [.., columns] in bf16, or in float32 where `wide`."""
        rows = x.reshape(-1, weight.depth).contiguous()
        out = torch.empty((len(rows), weight.columns), dtype=torch.float32 if wide else torch.bfloat16)
        address = None if bias is None else bias.data_ptr()
        threads = torch.get_num_threads()
        if len(rows):
            self._code.fd_linear(rows.data_ptr(), len(rows), weight, address, out.data_ptr(), int(wide), threads)
        return out.view(*x.shape[:-1], weight.columns)

    def find_top_k(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k <= MOST largest entries of each row [M, V] of float32 and their places; of equal ones the first first.

        What is not a number counts, and comes out, as infinite.
        """
        rows, size = x.shape
        values, places = torch.empty((rows, k)), torch.empty((rows, k), dtype=torch.int64)
        found = values.data_ptr(), places.data_ptr(), torch.get_num_threads()
        self._code.fd_largest(x.data_ptr(), rows, size, k, *found)
        return values, places

    def likeliest(self, logits: Tensor, k: int, ids: Tensor | None, least: float) -> tuple[Tensor, Tensor]:
        """The k <= MOST likeliest of each row [M, V] of float32: log-probabilities from `least` on, and their ids.

        ids [V] int64 = what stands at each place; of equal entries the first one comes first.
        """
        rows, size = logits.shape
        values, places = torch.empty((rows, k)), torch.empty((rows, k), dtype=torch.int64)
        named = None if ids is None else ids.data_ptr()
        found = values.data_ptr(), places.data_ptr(), torch.get_num_threads()
        self._code.fd_likeliest(logits.data_ptr(), rows, size, k, named, least, *found)
        return values, places

    def norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """x [T, d] divided by its root mean square, times the gain."""
        rows, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        self._code.fd_norm(rows.data_ptr(), gain.data_ptr(), eps, len(rows), rows.shape[1], out.data_ptr())
        return out


@cache
def compiled() -> Compiled | None:
    """The library of this machine, compiled on first use; None where it cannot be had."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return Compiled(_built())
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("passes run in torch alone, several times slower on a CPU: %s", _short(error))
        return None


def _built() -> Path:
    """Where the library lies; a build appears whole or not at all, so that several processes may start at once."""
    text = b"".join((HERE / name).read_bytes() for name in SOURCES)
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise OSError("no C++ compiler; install g++")
    key = hashlib.sha256(text + repr((FLAGS, compiler, platform.machine(), _cpu())).encode()).hexdigest()[:16]
    path = cache_home() / "native" / f"{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            parts = Path(folder) / "decoder.o", Path(folder) / "decoder.so"
            # Stop at the first error: a CPU that cannot run this is refused in the first line, not seconds later.
            _run([compiler, *FLAGS, "-Wfatal-errors", "-c", str(HERE / "decoder.cpp"), "-o", str(parts[0])])
            # Linked without OpenMP: the runtime is the one that torch has loaded, so both share one set of threads.
            _run([compiler, "-shared", str(parts[0]), "-o", str(parts[1])])
            parts[1].replace(path)
    return path


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


def _cpu() -> str:
    """What the CPU can do, as far as the system tells: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _short(error: Exception) -> str:
    told = getattr(error, "stderr", None) or str(error)
    lines = [line for line in told.splitlines() if "error" in line] or told.splitlines() or [repr(error)]
    return lines[0].strip()[:200]
