"""Small copies from the device to the host that the host waits for only when it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(slots=True)
class AsyncCopy:
    """A small tensor on its way to the host."""

    content: Tensor
    arrived: torch.cuda.Event | None = None
    rows: Sequence[int] | None = None  # those that are read; None = all

    @classmethod
    def post(cls, content: Tensor) -> AsyncCopy:
        """Copy it, after what the device is doing now and before whatever it is given next."""
        if not content.is_cuda:
            return cls(content.clone())
        there = torch.empty(content.shape, dtype=content.dtype, pin_memory=True)
        there.copy_(content, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return cls(there, event)

    def read(self) -> list[list[int]]:
        """Wait for it."""
        if self.arrived is not None:
            self.arrived.synchronize()
        lines: list[list[int]] = self.content.tolist()
        return lines if self.rows is None else [lines[row] for row in self.rows]

    def part(self, rows: Sequence[int]) -> AsyncCopy:
        """Some of its rows."""
        return replace(self, rows=rows)
