"""Arrays in one file that is mapped into memory: written one after another, read when a product first touches them.

The index stands at the end, so that nothing needs to be known before it is written; every array begins at a cache line.
Knows nothing of what the arrays mean.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ForedraftError

LINE = 64
MAGIC = b"fdtiles1"
DTYPES = {str(dtype): dtype for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32)}


class TileWriter:
    """Writes beside `path`; the file appears there when `close` is called."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{torch.randint(1 << 62, ()).item():x}")
        self._file = self._partial.open("wb")
        self._index: dict[str, tuple[int, str, list[int]]] = {}

    def add(self, name: str, chunks: Iterable[Tensor]) -> None:
        """An array, given as consecutive pieces along its first dimension."""
        self._file.write(b"\0" * (-self._file.tell() % LINE))
        start, rows, last = self._file.tell(), 0, torch.empty(0)
        for last in chunks:
            self._file.write(last.contiguous().view(-1).view(torch.uint8).numpy().data)
            rows += len(last)
        self._index[name] = (start, str(last.dtype), [rows, *last.shape[1:]])

    def close(self, about: Any) -> None:
        """`about`: whatever belongs to the file, as JSON."""
        text = json.dumps({"index": self._index, "about": about}).encode()
        self._file.write(text + struct.pack("<Q", len(text)) + MAGIC)
        self._file.close()
        self._partial.replace(self._path)

    def discard(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


def read_tiles(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Mapped arrays by name, and what was said about them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 16))
        tail = file.read(16)
        length = struct.unpack("<Q", tail[:8])[0] if len(tail) == 16 and tail[8:] == MAGIC else size
        if length > size - 16:
            raise ForedraftError(f"{path} is damaged; delete it, it is made again")
        file.seek(size - 16 - length)
        found = json.loads(file.read(length))
    whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return {name: _array(whole, *entry) for name, entry in found["index"].items()}, found["about"]


def _array(whole: Tensor, start: int, kind: str, shape: list[int]) -> Tensor:
    dtype, count = DTYPES[kind], 1
    for side in shape:
        count *= side
    return whole[start : start + count * dtype.itemsize].view(dtype).view(shape)
