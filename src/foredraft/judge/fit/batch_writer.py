"""Batches written ahead of the training step that reads them.

On a GPU by processes of their own: a thread that composes text holds the interpreter, and the kernels of the step would
wait for it again and again. Elsewhere a thread is enough.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch

from .batches import Batch, ProblemBatches

AHEAD = 4  # steps whose batches are written before they are asked for
_own: list[ProblemBatches] = []  # of a process that writes


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What a process needs to write the same batches; a tokenizer as text, since that is what surely travels."""

    tokenizer: str
    template: str | None
    closing: int
    rest: tuple[Any, ...]  # manner, families, seed


class BatchWriter:
    """The batches of step after step; those of the next ones are written meanwhile."""

    def __init__(self, batches: ProblemBatches, rows: int, processes: int = 0) -> None:
        self.batches, self.rows = batches, rows
        self._ready: dict[int, Future[list[Any]]] = {}
        self._pool: Executor = ThreadPoolExecutor(1)
        self._apart = processes > 0
        if self._apart:
            made = _Recipe(
                batches.tokenizer.backend.to_str(), batches.tokenizer.chat_template, batches.closing,
                (batches.manner, batches.families, batches.seed),
            )  # fmt: skip
            self._pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (made, batches.frame))

    def step(self, step: int) -> list[Batch]:
        found = self._ready.pop(step, None) or self._start(step)
        for later in range(step + 1, step + 1 + (AHEAD if self._apart else 1)):
            if later not in self._ready:
                self._ready[later] = self._start(later)
        made = found.result()
        return [Batch(*map(torch.from_numpy, arrays)) for arrays in made] if self._apart else made

    def _start(self, step: int) -> Future[list[Any]]:
        if self._apart:
            return self._pool.submit(_write, step, self.rows)
        return self._pool.submit(self.batches.step, step, self.rows)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _begin(made: _Recipe, frame: tuple[str, str]) -> None:
    from tokenizers import Tokenizer as Backend

    from ...models import Tokenizer

    torch.set_num_threads(1)
    tokenizer = Tokenizer(Backend.from_str(made.tokenizer))
    own = ProblemBatches(tokenizer, [made.closing], *made.rest)
    own.frame, own.framed = frame, made.template is not None
    _own[:] = [own]


def _write(step: int, rows: int) -> list[Any]:
    batches = _own[0].step(step, rows)
    return [(batch.ids.numpy(), batch.taught.numpy(), batch.right.numpy()) for batch in batches]
