"""The K/V cache on CUDA: pages of rows that slots take as their texts grow, and give back when they end.

A slot's pages stand in a table on the device, which attention reads, so captured passes need not know them. Page 0 is
nobody's: lines of the table end in it, and what a pass writes there is never read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import ForedraftError, KVFullError, UsageError, unknown_name
from ..kv_cache import KVCache, Snapshot, zeroed
from ..row_layout import Pages, upload
from .kv_layer import FLOAT8, LEAST_CAPABILITY, KVLayer, in_order
from .tree_attention import PAGE

log = logging.getLogger("foredraft")
SHARE = 0.5  # of the free memory of a GPU, at most; drafters and CUDA graphs come later
GIB = 1 << 30


class KVOptions(NamedTuple):
    """What an operator decides about keys and values."""

    memory: int | None = None  # bytes; None = what texts can fill, but no more than SHARE of what is free
    dtype: str = "auto"  # a name of KV_DTYPES

    @property
    def narrow(self) -> bool:
        return self.dtype == "fp8"

    @classmethod
    def of(cls, memory: int | str | None, dtype: str) -> KVOptions:
        """As they are spelled: 20G or 20GiB, auto or fp8."""
        if dtype not in KV_DTYPES:
            raise unknown_name("K/V dtype", dtype, KV_DTYPES)
        if not isinstance(memory, str):
            return cls(memory, dtype)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(i?b)?", memory.strip().lower())
        if found is None:
            raise UsageError(f"{memory!r} is no size of memory; write 20G, or a number of bytes")
        return cls(int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " ")), dtype)

    def check(self, device: torch.device) -> None:
        if self.narrow and device.type == "cuda" and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
            raise UsageError("keys and values in fp8 need a GPU of compute capability 8.9 (Ada, Hopper) or more")
        if self.narrow:
            log.warning("keys and values are rounded to fp8 on request: texts are not those of an unrounded K/V cache")


KV_DTYPES = ("auto", "fp8")  # auto: the model's own
USUAL = KVOptions()


class Sizes(NamedTuple):
    """Of a page of the cache."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    rows: int = PAGE

    @property
    def bytes(self) -> int:
        row = self.dim * self.dtype.itemsize + (torch.float32.itemsize if self.scaled else 0)
        return self.layers * 2 * self.heads * self.rows * row

    @property
    def scaled(self) -> bool:
        return self.dtype == FLOAT8

    def holding(self, rows: int) -> int:
        """Pages that hold so many rows."""
        return -(-rows // self.rows)


def pages_for(sizes: Sizes, slots: int, capacity: int, device: torch.device, memory: int | None = None) -> int:
    """Pages of a cache: what all slots can fill, where there is memory for it; memory: bytes that it may take."""
    full = slots * sizes.holding(capacity) + 1
    if memory is None:
        memory = int(SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else full * sizes.bytes
    found = min(full, memory // sizes.bytes)
    if found < full:
        log.info("K/V cache: %d tokens of all slots together, %.1f GiB", found * sizes.rows, found * sizes.bytes / GIB)
    return found


def fitting_length(sizes: Sizes, pages: int, max_length: int, max_scratch: int) -> int:
    """The longest text of a slot that has all pages for itself."""
    most = (pages - 1) * sizes.rows - max_scratch
    if most < min(sizes.rows, max_length):
        least = (sizes.holding(sizes.rows + max_scratch) + 1) * sizes.bytes / GIB
        raise ForedraftError(f"the K/V cache of {pages * sizes.bytes / GIB:.2f} GiB is too small; {least:.2f} is least")
    if most < max_length:
        log.warning(
            "K/V cache: the context is %d tokens, since no more fit into its memory; asked: %d", most, max_length
        )
    return min(most, max_length)


class PagedCache(KVCache):
    """Keys and values of every layer in pages, and which slot holds which."""

    def __init__(
        self,
        sizes: Sizes,
        slots: int,
        max_length: int,
        max_scratch: int,
        device: torch.device,
        pages: int,
        wide: torch.dtype = torch.float32,
    ) -> None:
        """wide: what keys and values are computed in."""
        self.count, self.sizes, self.wide = pages, sizes, wide
        kept = torch.uint8 if sizes.scaled else sizes.dtype
        super().__init__(sizes.layers, slots, sizes.heads, max_length, max_scratch, sizes.dim, kept, device)
        shape = (sizes.layers, 2, pages, sizes.heads, sizes.rows, 1)
        self.scales = zeroed(shape, torch.float32, device) if sizes.scaled else None
        table = torch.zeros((slots + 1, sizes.holding(self.capacity)), dtype=torch.int32, device=device)
        self.pages = Pages(table, sizes.rows)
        self._free = list(range(pages - 1, 0, -1))
        self._held: list[list[int]] = [[] for _ in range(slots)]

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        layers, both, _, heads, _, dim = shape
        return zeroed((layers, both, self.count, heads, self.sizes.rows, dim), dtype, device)

    @property
    def room(self) -> int:
        """Rows of pages that nobody holds."""
        return len(self._free) * self.sizes.rows

    def hold(self, slot: int, rows: int) -> bool:
        """Take pages so that `rows` rows fit after the slot's text; False, and none taken, where too few are free."""
        missing = self._missing(slot, self.lengths[slot] + rows)
        if missing > len(self._free):
            return False
        if missing:
            self.take([slot], [rows])
        return True

    def take(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """The same for several slots: for all of them or for none."""
        missing = [self._missing(slot, self.lengths[slot] + more) for slot, more in zip(slots, rows, strict=True)]
        if not any(missing):  # as in most rounds
            return
        wanted = dict(zip(slots, missing, strict=True))
        total = sum(wanted.values())
        if total > len(self._free):
            raise KVFullError(
                f"the K/V cache is full: {total} pages of {self.sizes.rows} tokens are wanted and {len(self._free)} are"
                " free; give it more memory, or run fewer or shorter texts"
            )
        changed = []
        for slot, count in wanted.items():
            for _ in range(count):
                held = self._held[slot]
                held.append(self._free.pop())
                changed.append((slot, len(held) - 1, held[-1]))
        self._enter(changed)

    def _missing(self, slot: int, rows: int) -> int:
        held = len(self._held[slot])
        return 0 if rows <= held * self.sizes.rows else self.sizes.holding(min(rows, self.capacity)) - held

    def drop(self, slot: int) -> None:
        """Forget a slot's text; its pages are free."""
        self.lengths[slot] = self.scratch[slot] = 0
        self._give(slot, 0)

    def _give(self, slot: int, length: int) -> None:
        """Pages beyond `length` rows are free. Work under way still writes to them before anything later does."""
        keep, held = self.sizes.holding(length), self._held[slot]
        self._enter((slot, i, 0) for i in range(keep, len(held)))
        self._free += reversed(held[keep:])
        del held[keep:]

    def _enter(self, changed: Iterable[tuple[int, int, int]]) -> None:
        """Slots, numbers of pages of theirs and the pages, into the table on the device."""
        columns = [list(column) for column in zip(*changed, strict=True)]
        if columns:
            slot, number, page = upload(columns, self.pages.table.device).unbind(0)
            self.pages.table.index_put_((slot, number), page.to(torch.int32))

    def reserve(self, slots: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
        before = super().reserve(slots, counts)
        try:
            self.take(slots, [held + count for held, count in zip(before, counts, strict=True)])
        except KVFullError:
            for slot, held in zip(slots, before, strict=True):
                self.scratch[slot] = held
            raise
        return before

    def truncate(self, slot: int, length: int) -> None:
        """Where text is forgotten, so are its pages; those that were only held for what comes next stay."""
        shorter = length < self.lengths[slot]
        super().truncate(slot, length)
        if shorter:
            self._give(slot, length)

    @property
    def planes(self) -> list[Tensor]:
        """[layers, 2, pages, heads, rows, ..]: all that makes up a row."""
        return [self.data] if self.scales is None else [self.data, self.scales]

    def in_layer(self, index: int) -> KVLayer:
        if self.scales is None:
            return KVLayer(*self.layer(index))
        return KVLayer(*self.layer(index), self.scales[index, 0, ..., 0], self.scales[index, 1, ..., 0])

    def text(self, layer: int, slot: int) -> tuple[Tensor, Tensor]:
        keys, values = self.in_layer(layer).texts(self._table(slot), self.wide)
        return keys[:, : self.lengths[slot]], values[:, : self.lengths[slot]]

    def _table(self, slot: int) -> Tensor:
        """The pages of a slot's text."""
        return self.pages.table[slot, : self.sizes.holding(self.lengths[slot])]

    def snapshot(self, slot: int) -> Snapshot:
        table, length = self._table(slot).to(torch.int64), self.lengths[slot]
        return Snapshot(*(in_order(plane[:, :, table])[:, :, :, :length].clone() for plane in self.planes))

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        length, size = snapshot.data.shape[3], self.sizes.rows
        self.lengths[slot] = self.scratch[slot] = 0
        self.take([slot], [length])
        rows = torch.arange(length, device=self.data.device)
        place = self.pages.places(torch.full_like(rows, slot), rows)
        for plane, kept in zip(self.planes, (snapshot.data, snapshot.scales), strict=False):
            assert kept is not None
            plane[:, :, place // size, :, place % size] = kept.permute(3, 0, 1, 2, 4)
        self.lengths[slot] = length

    def check(self) -> None:
        super().check()
        held = [page for pages in self._held for page in pages]
        if sorted([*held, *self._free]) != list(range(1, self.count)):
            raise ValueError("some page is held twice, or by nobody and not free")
        for slot, pages in enumerate(self._held):
            line = self.pages.table[slot].tolist()
            if line != pages + [0] * (len(line) - len(pages)):
                raise ValueError(f"slot {slot} holds pages {pages}, and its table says {line}")
            if len(pages) * self.sizes.rows < min(self.lengths[slot] + self.scratch[slot], self.capacity):
                raise ValueError(f"slot {slot} has more rows than its pages hold")
