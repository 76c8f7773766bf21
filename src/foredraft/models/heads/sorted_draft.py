"""S2D's drafter: one small language model that can stop after several depths, each a drafter of its own."""

from __future__ import annotations

from torch import Tensor

from ..decoder import Decoder
from .base import HeadSpec
from .language import FastDraft


class SortedDraft(FastDraft):
    """A FastDraft whose first layers are sub-models: all exits share the last norm and the output rows."""

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        self.exits = tuple(int(depth) for depth in spec.extra["exits"])  # increasing; the last is all layers

    @property
    def segments(self) -> list[range]:
        """Layers between one exit and the next."""
        return [range(begin, end) for begin, end in zip((0, *self.exits), self.exits, strict=False)]

    def at_exits(self, streams: dict[int, Tensor]) -> list[Tensor]:
        """Streams by depth -> features of each exit."""
        return [self.finish(streams[depth]) for depth in self.exits]


def usual_exits(layers: int) -> tuple[int, ...]:
    """Thirds of the depth."""
    return tuple(sorted({max(1, round(layers * part / 3)) for part in (1, 2, 3)}))
