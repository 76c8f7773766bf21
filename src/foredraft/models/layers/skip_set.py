"""Halves of layers that a pass leaves out: a skipped half adds nothing to the stream, and writes no keys or values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Layers whose attention is left out, and layers whose feed-forward part is."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def of(cls, attention: Iterable[int], mlp: Iterable[int]) -> SkipSet:
        return cls(frozenset(attention), frozenset(mlp))


Skip = SkipSet | None  # None = nothing is left out
