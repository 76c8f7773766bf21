"""The target writes many texts through the engine: as many at a time as there are slots, and no slot waits for another.

Knows nothing of files, templates or what the texts are for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ..core.verify import RULES
from ..engine import Engine, Method, Request
from ..runtime import Executor
from ..types import SamplingParams
from ..types import Sequence as Text
from .bulk_generate import Task

GROUPS = 8  # newcomers wait for an eighth of the slots: each of their passes is one that no graph was captured of


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
    """Texts in the order in which they end, until all have or the time is over; one at least is waited for.

    A text for which the target has no distribution is left out.
    """
    engine, plain, stops = Engine(executor), Method("plain", RULES["sample-and-match"]), frozenset(ends)

    def request(number: int, task: Task) -> Request:
        params = SamplingParams(max_new_tokens=max_new(task), temperature=task.temperature, min_p=task.min_p)
        return Request(Text(number, list(task.prompt), len(task.prompt), params, seed + number), plain, stops)

    waiting, slots, ended = iter(enumerate(tasks)), executor.max_slots, 0
    running: dict[int, Request] = {}
    while time.monotonic() < until or not ended:
        if len(running) <= slots - max(1, slots // GROUPS):
            for number, task in islice(waiting, slots - len(running)):
                running[number] = request(number, task)
                engine.add(running[number])
        if not running:
            return
        for event in engine.step():
            if event.finish_reason is not None:
                text = running.pop(event.request_id).sequence.output
                if event.finish_reason in ("stop", "length"):
                    ended += 1
                    yield Written(event.request_id, text)
    for each in running.values():
        engine.cancel(each)
