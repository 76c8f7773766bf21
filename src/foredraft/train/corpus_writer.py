"""Who writes the texts of a corpus: the engine, or, where a GPU has room for hundreds of rows, plain batches.

Knows nothing of files, templates or what the texts are for.
"""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch

from ..core.verify import RULES
from ..engine import Engine, Method, Request
from ..models import Decoder
from ..runtime import Executor
from ..types import SamplingParams
from ..types import Sequence as Text
from .bulk_generate import Task, write

GROUPS = 8  # newcomers wait for an eighth of the slots: each of their passes is one that no graph was captured of

MOST, SHARE = 2048, 0.3  # rows of a batch, and their part of the free memory: they are copied when some have ended


class Written(NamedTuple):
    """What became of a task."""

    task: int  # its number
    text: list[int]  # its closing token included


class CorpusWriter(ABC):
    """Writes many texts."""

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @abstractmethod
    def texts(
        self,
        tasks: Sequence[Task],
        max_new: Callable[[Task], int],
        ends: Collection[int],
        seed: int = 0,
        until: float = math.inf,
    ) -> Iterator[Written]:
        """Texts in the order in which they end, until all have or the time is over; one at least is waited for.

        A text for which the target has no distribution is left out.
        """


@dataclass(frozen=True, slots=True)
class EngineWriter(CorpusWriter):
    """As many texts at a time as there are slots, and no slot waits for another. A text depends on its number alone."""

    executor: Executor

    @property
    def vocab_size(self) -> int:
        return self.executor.vocab_size

    def texts(
        self,
        tasks: Sequence[Task],
        max_new: Callable[[Task], int],
        ends: Collection[int],
        seed: int = 0,
        until: float = math.inf,
    ) -> Iterator[Written]:
        engine, plain, stops = Engine(self.executor), Method("plain", RULES["sample-and-match"]), frozenset(ends)

        def request(number: int, task: Task) -> Request:
            params = SamplingParams(max_new_tokens=max_new(task), temperature=task.temperature, min_p=task.min_p)
            return Request(Text(number, list(task.prompt), len(task.prompt), params, seed + number), plain, stops)

        waiting, slots, ended = iter(enumerate(tasks)), self.executor.max_slots, 0
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


@dataclass(frozen=True, slots=True)
class BatchWriter(CorpusWriter):
    """`rows` texts of like length at a time, all to their ends: the host has a step's launches to do and nothing for
    each text. What is drawn depends on the batch."""

    decoder: Decoder
    rows: int

    @classmethod
    def fitting(cls, decoder: Decoder, length: int, rows: int = 0) -> BatchWriter:
        """For texts of `length` tokens; unless said, as many `rows` as the GPU's free memory holds, 2,048 at most."""
        c = decoder.config
        each = 2 * c.num_layers * c.num_kv_heads * c.head_dim * length * decoder.dtype.itemsize
        free, _ = torch.cuda.mem_get_info(decoder.device) if decoder.device.type == "cuda" else (each * MOST, 0)
        return cls(decoder, rows or max(1, min(MOST, int(free * SHARE) // each)))

    @property
    def vocab_size(self) -> int:
        return self.decoder.config.vocab_size

    def texts(
        self,
        tasks: Sequence[Task],
        max_new: Callable[[Task], int],
        ends: Collection[int],
        seed: int = 0,
        until: float = math.inf,
    ) -> Iterator[Written]:
        order = sorted(range(len(tasks)), key=lambda number: len(tasks[number].prompt))
        batches = [order[begin : begin + self.rows] for begin in range(0, len(order), self.rows)]
        random.Random(seed).shuffle(batches)  # of all lengths alike, where the time ends before the texts
        for place, numbers in enumerate(batches):
            if place and time.monotonic() >= until:
                return
            part = [tasks[number] for number in numbers]
            room = [max_new(task) for task in part]
            found = write(self.decoder, part, max(room), ends, seed + place)
            for number, text, most in zip(numbers, found, room, strict=True):
                if text:
                    yield Written(number, text[:most])
