"""The safetensors format, read and written tensor by tensor so that neither way holds a whole file in memory.

A file is 8 bytes of header length, a JSON header (name -> dtype, shape, byte range), and the bytes themselves.
Reading goes through plain reads and one small buffer: pages of a mapped file would count as this process's memory.
It knows nothing of models.
"""

from __future__ import annotations

import json
import math
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ...errors import ForedraftError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
CHUNK = 1 << 24  # bytes read at once; a multiple of every element size
LONGEST_HEADER = 100_000_000  # as in the safetensors library: more is not a header


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # first byte, from the beginning of the file
    stop: int


class TensorFile:
    """An open safetensors file; its header is checked against the file's length before anything is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ForedraftError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            self.entries = self._read_header()
        except BaseException:
            self._file.close()
            raise
        self._buffer = torch.empty(CHUNK, dtype=torch.uint8)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def read_into(self, name: str, target: Tensor) -> None:
        """Fill a tensor of the entry's shape, of any dtype and on any device, with the entry's values."""
        entry = self.entries[name]
        if tuple(target.shape) != entry.shape:
            raise ForedraftError(f"{self.path}: {name} has shape {list(entry.shape)}, not {list(target.shape)}")
        flat, done = target.view(-1), 0
        self._file.seek(entry.start)
        while done < flat.numel():
            values = self._next_values(name, entry.dtype, flat.numel() - done)
            flat[done : done + values.numel()].copy_(values)
            done += values.numel()

    def _next_values(self, name: str, dtype: torch.dtype, at_most: int) -> Tensor:
        """The next values of the file, in the shared buffer: valid until the next call."""
        size = min(CHUNK, at_most * dtype.itemsize)
        raw = self._buffer[:size]
        if self._file.readinto(raw.numpy().data) != size:
            raise ForedraftError(f"{self.path} ends inside {name}; download it again")
        return raw.view(dtype)

    def _read_header(self) -> dict[str, Entry]:
        size = self.path.stat().st_size
        prefix = self._file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if not 0 < length <= min(size - 8, LONGEST_HEADER):
            raise ForedraftError(f"{self.path} is truncated or no safetensors file; download it again")
        try:
            header = json.loads(self._file.read(length))
            entries = {k: _entry(v, 8 + length) for k, v in header.items() if k != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForedraftError(f"{self.path} has a malformed header ({error!r}); download it again") from None
        end = max((entry.stop for entry in entries.values()), default=0)
        if end > size:
            raise ForedraftError(f"{self.path} is truncated: {size} bytes of {end}; download it again")
        return entries


def _entry(raw: Mapping[str, Any], base: int) -> Entry:
    dtype, shape = DTYPES[raw["dtype"]], tuple(int(n) for n in raw["shape"])
    start, stop = raw["data_offsets"]
    if start < 0 or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError("a byte range that does not fit its shape")
    return Entry(dtype, shape, base + start, base + stop)


class TensorWriter:
    """Writes a safetensors file front to back: announce every tensor first, then `add` each in that order."""

    def __init__(self, path: Path, announced: Iterable[tuple[str, tuple[int, ...]]], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._due: deque[tuple[str, int]] = deque()  # name and bytes of each tensor still to come
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in announced:
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
            self._due.append((name, end - start))
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
        self._file = path.open("wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def add(self, name: str, blocks: Iterable[Tensor]) -> None:
        """Append the next announced tensor, given as consecutive blocks of rows, cast to the file's dtype."""
        expected, size = self._due.popleft() if self._due else ("nothing more", 0)
        written = 0
        for block in blocks:
            data = block.to("cpu", self._dtype).contiguous().view(-1).view(torch.uint8)
            written += self._file.write(data.numpy().data)
        if (name, written) != (expected, size):
            raise ForedraftError(f"{written} bytes of {name} were written where {size} of {expected} belong")

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        if kind is None and self._due:
            raise ForedraftError(f"{len(self._due)} announced tensors were never written, first {self._due[0][0]}")
