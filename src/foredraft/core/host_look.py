"""Whether the host may look at a value to save work: on a device that is a synchronisation, in a capture impossible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_blind = False


def may_look(x: Tensor) -> bool:
    return not _blind and x.device.type == "cpu"


@contextmanager
def looking_away() -> Iterator[None]:
    """As on a device, wherever the tensors lie: for functions that shall be captured and replayed."""
    global _blind
    before, _blind = _blind, True
    try:
        yield
    finally:
        _blind = before
