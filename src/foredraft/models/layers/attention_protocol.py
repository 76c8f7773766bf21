"""Attention that takes a layer's heads as they come, for devices on which every small step costs."""

from __future__ import annotations

from torch import Tensor


class AttendHeads:
    """Attention that rotates too. A layer that meets one calls `from_heads` instead of rotating itself."""

    def from_heads(self, layer: int, heads: Tensor, bias: Tensor | None = None) -> Tensor:
        """heads [T, H + 2 Hkv, D], not rotated, and what is still to be added to them -> [T, H * D]."""
        raise NotImplementedError

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same for callers that have rotated: q [T, H, D], k and v [T, Hkv, D] -> [T, H * D]."""
        raise NotImplementedError
