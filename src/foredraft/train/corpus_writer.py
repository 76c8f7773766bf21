"""The target writes many texts through the engine: as many at a time as there are slots, and no slot waits for another.

Knows nothing of files, templates or what the texts are for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ..core.verify import RULES
from ..engine import Engine, Method, Request
from ..runtime import Executor
from ..types import SamplingParams
from ..types import Sequence as Text
from .bulk_generate import Task


class Written(NamedTuple):
    """What became of a task."""

    task: int  # its number
    text: list[int]  # its closing token included


def write_texts(
    executor: Executor,
    tasks: Sequence[Task],
    max_new: Callable[[Task], int],
    ends: Collection[int],
    seed: int = 0,
    until: float = math.inf,
) -> Iterator[Written]:
    """Texts in the order in which they end, until all have or the time is over; one at least is waited for."""
    engine, plain, stops = Engine(executor), Method("plain", RULES["sample-and-match"]), frozenset(ends)
    requests = []
    for number, task in enumerate(tasks):
        params = SamplingParams(max_new_tokens=max_new(task), temperature=task.temperature, min_p=task.min_p)
        text = Text(number, list(task.prompt), len(task.prompt), params, seed + number)
        requests.append(Request(text, plain, stops))
        engine.add(requests[-1])
    ended = 0
    while not engine.scheduler.idle and (time.monotonic() < until or not ended):
        for event in engine.step():
            if event.finish_reason in ("stop", "length"):
                ended += 1
                yield Written(event.request_id, requests[event.request_id].sequence.output)
    for request in requests:
        engine.cancel(request)
