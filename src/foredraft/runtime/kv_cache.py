"""The K/V cache: one block of memory, cut into slots, allocated once.

A slot holds its committed rows from 0 on and its scratch rows right after them, so that accepting a chain moves
nothing. On the host untouched pages cost no memory, so slots may be as long as the model's context.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ForedraftError

# Not shared with processes that are forked off; Windows has no such flags.
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
UNSHARED = 1 << 60  # rows: no text is waited for


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Committed K/V of one slot, copied."""

    data: Tensor  # [L, 2, Hkv, length, D]
    scales: Tensor | None = None  # [L, 2, Hkv, length, 1], where data are rounded and scaled


def zeroed(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not empty: masked rows are still multiplied by zero, and zero times a stray NaN is NaN.

    On the host as fresh pages of the system, which cost nothing until they are written to. torch.zeros writes to them
    all; numpy.zeros asks for pages of 2 MiB, of which one token of every layer and head touches as many as there are.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size, **PRIVATE), dtype=dtype).view(shape)


class OwnMemory:
    """For executors and caches whose slots share no memory: every slot has its own."""

    @property
    def room(self) -> int:
        """Rows that slots may still take of memory that they share."""
        return UNSHARED

    def hold(self, slot: int, rows: int) -> bool:
        """Whether there is memory for so many rows after the slot's text; if so, it is the slot's."""
        return True

    def drop(self, slot: int) -> None:
        """Where memory is shared, forget a slot's text and what it holds for more."""


class KVCache(OwnMemory):
    """Keys and values of every layer and slot, and how much of each slot is in use."""

    def __init__(
        self,
        layers: int,
        slots: int,
        heads: int,
        max_length: int,
        max_scratch: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_length, self.max_scratch = max_length, max_scratch
        self.capacity = max_length + max_scratch
        self.data = self._make((layers, 2, slots, heads, self.capacity, dim), dtype, device)
        self.lengths = [0] * slots
        self.scratch = [0] * slots
        self.parents: list[list[int] | None] = [[] for _ in range(slots)]  # None = the scratch rows are a chain

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return zeroed(shape, dtype, device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [slots, Hkv, capacity, D] each."""
        return self.data[index, 0], self.data[index, 1]

    def text(self, layer: int, slot: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer over the slot's committed text, [Hkv, length, D] each."""
        keys, values = self.layer(layer)
        return keys[slot, :, : self.lengths[slot]], values[slot, :, : self.lengths[slot]]

    def reserve(self, slots: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
        """Take scratch rows in every slot or in none; returns how many each held before."""
        before = tuple(self.scratch[slot] for slot in slots)
        for slot, held, count in zip(slots, before, counts, strict=True):
            check_drafts(slot, held + count, self.max_scratch)
        for slot, held, count in zip(slots, before, counts, strict=True):
            self.scratch[slot] = held + count
        return before

    def check_growth(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Raise where a slot cannot hold so many more tokens."""
        for slot, count in zip(slots, counts, strict=True):
            check_text(slot, self.lengths[slot] + count, self.max_length)

    def keep(self, slot: int, count: int, rows: Tensor | None = None) -> None:
        """Commit scratch rows: the first `count`, or those listed, which must increase."""
        base = self.lengths[slot]
        if rows is not None and count:
            moved = self.data[:, :, slot].index_select(3, rows[:count] + base)
            self.data[:, :, slot, :, base : base + count] = moved
        self.lengths[slot] = base + count
        self.scratch[slot] = 0

    def truncate(self, slot: int, length: int) -> None:
        if not 0 <= length <= self.lengths[slot]:
            raise ValueError(f"slot {slot} holds {self.lengths[slot]} tokens and cannot be cut to {length}")
        self.lengths[slot] = length
        self.scratch[slot] = 0

    def stand_at(self, slot: int, length: int) -> None:
        """Rows are placed from here on, whatever lies beyond; for whoever knows how far each layer has read."""
        check_text(slot, length, self.max_length)
        self.lengths[slot], self.scratch[slot] = length, 0

    def snapshot(self, slot: int) -> Snapshot:
        return Snapshot(self.data[:, :, slot, :, : self.lengths[slot]].clone())

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        length = snapshot.data.shape[3]
        self.data[:, :, slot, :, :length] = snapshot.data
        self.lengths[slot] = length
        self.scratch[slot] = 0

    def check(self) -> None:
        """Raise where lengths and scratch rows exceed their limits."""
        for slot, (length, scratch) in enumerate(zip(self.lengths, self.scratch, strict=True)):
            if not (0 <= length <= self.max_length and 0 <= scratch <= self.max_scratch):
                limits = f"{self.max_length} and {self.max_scratch}"
                raise ValueError(f"slot {slot}: {length} committed and {scratch} scratch rows of {limits}")


def check_drafts(slot: int, rows: int, limit: int) -> None:
    if rows > limit:
        raise ForedraftError(f"K/V slot {slot} is full: {rows} drafts exceed {limit}; lower the draft length")


def check_text(slot: int, length: int, limit: int) -> None:
    if length > limit:
        raise ForedraftError(f"K/V slot {slot} is full: {length} tokens exceed the context of {limit}")
