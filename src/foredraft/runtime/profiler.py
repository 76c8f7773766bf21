"""Measures what passes of a model cost here: new rows, context and batch against seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..control.cost import CostModel
from .base import Executor, Rows

TOKEN = 1  # any token does: a pass costs the same for all


@dataclass(frozen=True, slots=True)
class Grid:
    """The points to measure, and how often."""

    rows: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 48, 49, 64)  # products go by 16 rows: costs have steps
    contexts: tuple[int, ...] = (64, 512, 1536)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    repeats: int = 5
    most: int = 128  # rows of all sequences together; larger points are left out

    def within(self, executor: Executor) -> Grid:
        """What the executor has room for. Every line keeps its rows, so that the points stay a grid."""
        longest = executor.max_length - max(self.rows)
        contexts = tuple(c for c in self.contexts if c < longest) or (max(1, longest // 2),)
        rows = tuple(r for r in self.rows if r <= executor.max_scratch)
        return Grid(rows, contexts, tuple(b for b in self.batches if b <= executor.max_slots), self.repeats, self.most)

    def points(self) -> list[tuple[int, int]]:
        return [(b, r) for b in self.batches for r in self.rows if b * r <= self.most]


# A second or two for one sequence, a few more where many may run side by side.
QUICK = Grid(rows=(1, 4, 8, 16, 17, 32, 33, 48), contexts=(256,), batches=(1, 4, 16, 64), repeats=3)


@torch.no_grad()
def measure(
    executor: Executor, grid: Grid | None = None, tell: Callable[[int, int], None] = lambda done, total: None
) -> CostModel:
    """The least of rounds that visit every point in turn: neighbours only add time, and what is found is kept. Uses all
    slots."""
    grid = (grid or Grid()).within(executor)
    points, found = grid.points(), []
    total, done = len(grid.contexts) * (grid.repeats + 1) * len(points), 0
    for context in grid.contexts:
        slots = list(range(max(grid.batches)))
        _fill(executor, slots, context)
        times: dict[tuple[int, int], list[float]] = {point: [] for point in points}
        for turn in range(grid.repeats + 1):
            for point in points:
                seconds = _pass(executor, slots[: point[0]], context, point[1])
                if turn:  # the first one warms up
                    times[point].append(seconds)
                done += 1
                tell(done, total)
        found.append({point: min(line) for point, line in times.items()})
        executor.rollback(slots, [0] * len(slots))
    verify = tuple(tuple(tuple(_line(grid, at, b)) for at in found) for b in grid.batches)
    return CostModel(grid.rows, grid.contexts, grid.batches, verify)


def _fill(executor: Executor, slots: Sequence[int], context: int) -> None:
    """The same text into every slot, read once."""
    executor.rollback(slots, [0] * len(slots))
    executor.prefill(slots[:1], [[TOKEN] * context])
    if len(slots) > 1:
        text = executor.snapshot(slots[0])
        for slot in slots[1:]:
            executor.restore(slot, text)


def _pass(executor: Executor, slots: Sequence[int], context: int, rows: int) -> float:
    new = Rows.chains(slots, [[TOKEN] * rows] * len(slots), executor.device)
    _wait(executor)
    begin = time.perf_counter()
    executor.forward(new)
    _wait(executor)
    seconds = time.perf_counter() - begin
    executor.rollback(slots, [context] * len(slots))
    return seconds


def _line(grid: Grid, at: dict[tuple[int, int], float], batch: int) -> Iterator[float]:
    """Seconds by rows; points that were left out follow the last slope per row of all sequences."""
    known = [(r, at[batch, r]) for r in grid.rows if (batch, r) in at]
    for rows in grid.rows:
        if (batch, rows) in at:
            yield at[batch, rows]
        else:
            (r0, s0), (r1, s1) = known[0], known[-1]
            slope = (s1 - s0) / (r1 - r0) if r1 > r0 else s1 / r1
            yield s1 + max(slope, 0.0) * (rows - r1)


def _wait(executor: Executor) -> None:
    if executor.device.type == "cuda":
        torch.cuda.synchronize(executor.device)
