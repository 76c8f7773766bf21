"""Measures a target and a drafter side by side: each alone, then both at once. Knows no method."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from statistics import median

import torch

from ..control.overlap import PairTimes
from .base import Executor, Rows
from .lanes import Lane, own_threads
from .profiler import TOKEN

ROWS = (1, 2, 4, 8, 16, 32)
SHORT, LONG = 1, 9  # drafted tokens of the two jobs whose difference is timed
CONTEXT = 128
REPEATS = 5

# Drafts so many tokens after the text of the measurement; done when it returns.
Draft = Callable[[int], object]


@torch.no_grad()
def measure_pair(target: Executor, draft: Draft, lane: Lane, target_threads: int = 0) -> PairTimes:
    """Medians of a few repeats after a warm-up. Uses slot 0 of the target."""
    context = min(CONTEXT, target.max_length // 2)
    target.rollback([0], [0])
    target.prefill([0], [[TOKEN] * context])
    rows = tuple(count for count in ROWS if count <= target.max_scratch)
    with own_threads(target_threads):
        verify = tuple(_middle(partial(_pass, target, context, count)) for count in rows)
    short, alone = (_middle(partial(_job, lane, draft, n)) for n in (SHORT, LONG))
    passes, beside = _both(target, draft, lane, target_threads, context)
    target.rollback([0], [0])
    step = max((alone - short) / (LONG - SHORT), 1e-6)
    return PairTimes(step, rows, verify, max(1.0, beside / alone), max(1.0, passes / verify[0]))


def _both(target: Executor, draft: Draft, lane: Lane, threads: int, context: int) -> tuple[float, float]:
    """Seconds of a pass over one row while the drafter drafts, and of the drafter's job meanwhile."""
    passes, jobs = [], []
    for _ in range(REPEATS):
        future: Future[float] = lane.submit(partial(_timed, draft, LONG))
        with own_threads(threads):
            during = []
            while not future.done():
                during.append(_pass(target, context, 1))
        jobs.append(future.result())
        passes += during[:-1] or during  # the last one ran alone for a part of its time
    return median(passes) if passes else _pass(target, context, 1), median(jobs)


def _pass(target: Executor, context: int, count: int) -> float:
    rows = Rows.chains([0], [[TOKEN] * count], target.device)
    begin = time.perf_counter()
    target.forward(rows)
    if target.device.type == "cuda":  # waits for this stream alone, and asleep: cores are the drafter's
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        done.synchronize()
    seconds = time.perf_counter() - begin
    target.rollback([0], [context])
    return seconds


def _job(lane: Lane, draft: Draft, count: int) -> float:
    return lane.submit(partial(_timed, draft, count)).result()


def _timed(draft: Draft, count: int) -> float:
    begin = time.perf_counter()
    draft(count)
    return time.perf_counter() - begin


def _middle(take: Callable[[], float]) -> float:
    take()
    take()  # the second one may still capture something
    return median(take() for _ in range(REPEATS))
