"""The compiled library: its calls for Python, and which level of instructions runs here.

Where there is no compiler, or a processor of another kind, `compiled` is None and one line in the log says why.
FOREDRAFT_NATIVE=0 turns it off; FOREDRAFT_NATIVE=avx2 and such ask for a level.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .build import built
from .levels import SWITCH, Level, levels
from .structs import BlockRows, Copying, Correction, GreedyChain, Options, Pass, ValueTree, Weight

MOST = 16  # entries of a row that `largest` and `likeliest` look for
log = logging.getLogger("foredraft")

_int, _pointer, _float = ctypes.c_int32, ctypes.c_void_p, ctypes.c_float


class Compiled:
    """What the library can do. Tensors are contiguous bf16 on the CPU unless said."""

    def __init__(self, path: Path, level: Level) -> None:
        self.level = level
        self._code = ctypes.CDLL(str(path))
        self._code.fd_layers.argtypes = [ctypes.POINTER(Pass)]
        self._code.fd_copy.argtypes = [ctypes.POINTER(Copying)]
        self._code.fd_correct.argtypes = [ctypes.POINTER(Correction)]
        self._code.fd_block_rows.argtypes = [ctypes.POINTER(BlockRows)]
        self._code.fd_greedy_chain.argtypes = [ctypes.POINTER(GreedyChain)]
        self._code.fd_value_tree.argtypes = [ctypes.POINTER(ValueTree)]
        weight = ctypes.POINTER(Weight)
        self._code.fd_linear.argtypes = [_pointer, _int, weight, _pointer, _pointer, _int, _int, _int]
        self._code.fd_norm.argtypes = [_pointer, _pointer, _float, _int, _int, _pointer]
        self._code.fd_largest.argtypes = [_pointer, _int, _int, _int, _pointer, _pointer, _int]
        search = self._code.fd_likeliest
        search.argtypes = [_pointer, _int, _int, _int, _pointer, _float, _pointer, _pointer, _int]
        self._code.fd_draw.argtypes = [_pointer, _int, ctypes.POINTER(Options), ctypes.c_uint64]
        self._code.fd_draw.restype = ctypes.c_int64
        if not self._code.fd_ready():
            raise OSError("the kernel refuses tile registers")

    def layers(self, order: Pass) -> None:
        """Send rows through layers, and on to their logits where the pass has a tail."""
        if not self._code.fd_layers(ctypes.byref(order)):
            raise IndexError("a token lies outside the vocabulary")

    def copy(self, order: Copying) -> None:
        """The top words of a block drafter with what pointers add."""
        self._code.fd_copy(ctypes.byref(order))

    def correct(self, order: Correction) -> None:
        """The states of a level of a block drafter."""
        if not self._code.fd_correct(ctypes.byref(order)):
            raise IndexError("a token lies outside the vocabulary")

    def block_rows(self, order: BlockRows) -> None:
        """The rows of a block drafter's round, and the places of texts that resemble their ends."""
        if not self._code.fd_block_rows(ctypes.byref(order)):
            raise IndexError("a token lies outside the vocabulary")

    def greedy_chain(self, order: GreedyChain) -> None:
        """Greedy chains of a block drafter."""
        if not self._code.fd_greedy_chain(ctypes.byref(order)):
            raise IndexError("a token lies outside the vocabulary")

    def value_tree(self, order: ValueTree) -> int:
        """A block drafter's tree for one text; how many nodes it has."""
        if (count := self._code.fd_value_tree(ctypes.byref(order))) < 0:
            raise IndexError("a token lies outside the vocabulary")
        return int(count)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool, tiles: int = 0) -> Tensor:
        """x [.., depth] -> [.., columns] in bf16, or in float32 where `wide`. `tiles`: as of a `Pass`."""
        rows = x.reshape(-1, weight.depth).contiguous()
        out = torch.empty((len(rows), weight.columns), dtype=torch.float32 if wide else torch.bfloat16)
        address = None if bias is None else bias.data_ptr()
        threads = torch.get_num_threads()
        if len(rows):
            self._code.fd_linear(rows.data_ptr(), len(rows), weight, address, out.data_ptr(), int(wide), tiles, threads)
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

    def draw(self, logits: Tensor, how: Options, key: int) -> int:
        """A token of one row [V] of float32 by a key's random numbers; -1 where the row is no distribution."""
        return int(self._code.fd_draw(logits.data_ptr(), len(logits), ctypes.byref(how), key))

    def norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """x [T, d] divided by its root mean square, times the gain."""
        rows, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        self._code.fd_norm(rows.data_ptr(), gain.data_ptr(), eps, len(rows), rows.shape[1], out.data_ptr())
        return out


@cache
def compiled() -> Compiled | None:
    """The library of this machine, compiled on first use; None where it cannot be had."""
    asked = os.environ.get(SWITCH, "")
    if asked == "0":
        return None
    reason = f"it has no {asked}" if asked else "it has neither AVX2 nor NEON"
    for level in levels():
        try:
            return Compiled(built(level), level)
        except (OSError, AttributeError, subprocess.SubprocessError) as error:  # a library without our functions, too
            reason = f"{level.name}: {error}"
    log.warning("passes run in torch, several times slower on this processor: %s", reason)
    return None
