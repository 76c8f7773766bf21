"""Top-k of rows by the native library; the references are in `core.distributions.top_k` and `core.shapes.step`."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.distributions import top_k as plain
from ...models import native


def find_top_k(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row of [M, V] and their places, from the largest on."""
    code = searcher(rows, k)
    return plain.find_top_k(rows, k) if code is None else code.find_top_k(rows, k)


def searcher(rows: Tensor, k: int) -> native.Compiled | None:
    """The library, if it takes these rows."""
    fits = rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous()
    return native.compiled() if fits and 0 < k <= min(native.MOST, rows.shape[1]) else None
