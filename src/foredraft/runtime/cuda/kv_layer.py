"""Keys and values of one layer in pages, as they are or in eight bits.

Eight bits are float8 (e4m3) with a scale for every row and head, a power of two: so nothing but the last step rounds,
and what a row is stored as depends on that row alone, whoever lies beside it and whenever it is written. Plain decoding
and speculation on such a cache therefore give the same text; that text is not the one of an unrounded cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LEAST_CAPABILITY = (8, 9)  # of GPUs that convert to it
NEAR = 1 << 31  # numbers of a layer's keys that kernels can address in 32 bits
TOP = 7  # the largest of a row has this exponent, so that it lies from 128 up to 256, of 448 that fit


class KVLayer(NamedTuple):
    """What attention reads and new rows are written to."""

    keys: Tensor  # [pages, Hkv, rows, D]; uint8 = float8
    values: Tensor
    key_scales: Tensor | None = None  # [pages, Hkv, rows] float32; None = not scaled
    value_scales: Tensor | None = None

    @property
    def far(self) -> bool:
        """Whether places in it need 64 bits."""
        return self.keys.numel() > NEAR

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For kernels, which read no scales where there are none."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys, self.values, self.keys, self.values
        return self.keys.view(FLOAT8), self.values.view(FLOAT8), self.key_scales, self.value_scales

    def store(self, page: Tensor, row: Tensor, keys: Tensor, values: Tensor) -> None:
        """New keys and values [T, Hkv, D] into rows [T] of pages [T]."""
        pairs = (self.keys, self.key_scales, keys), (self.values, self.value_scales, values)
        for rows, scales, new in pairs:
            if scales is not None:
                new, scales[page, :, row] = narrowed(new)
            rows[page, :, row] = new

    def texts(self, table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values by table [.., P] of pages: [.., Hkv, P * rows, D] each."""
        index = table.to(torch.int64)
        values = self.values[index]
        if self.value_scales is not None:
            values = widened(values, self.value_scales[index], dtype)
        return in_order(self.pages_of_keys(index, dtype)), in_order(values)

    def pages_of_keys(self, table: Tensor, dtype: torch.dtype) -> Tensor:
        """Keys by table [.., P] of pages: [.., P, Hkv, rows, D]."""
        index = table.to(torch.int64)
        keys = self.keys[index]
        return keys if self.key_scales is None else widened(keys, self.key_scales[index], dtype)


def in_order(pages: Tensor) -> Tensor:
    """[.., P, Hkv, rows, D] -> [.., Hkv, P * rows, D]."""
    return pages.transpose(-4, -3).flatten(-3, -2)


def narrowed(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[.., D] as the bytes of float8, and the scales [..] that widen them again."""
    wide = rows.float()
    power = (wide.abs().amax(dim=-1).view(torch.int32) >> 23).clamp(min=TOP + 1) - TOP  # biased, as floats have it
    up = ((254 - power) << 23).view(torch.float32)
    return (wide * up[..., None]).to(FLOAT8).view(torch.uint8), (power << 23).view(torch.float32)


def widened(rows: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return (rows.view(FLOAT8).float() * scales[..., None]).to(dtype)
