"""Requests run through the engine on table models."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.core.rng.keyed import Rng
from foredraft.engine import Engine, Method, Request
from foredraft.types import SamplingParams
from foredraft.types import Sequence as Text
from tests.kit.executor import TableExecutor


def request(
    prompt: Sequence[int], method: Method, number: int = 0, stop_ids: frozenset[int] = frozenset(), **params: object
) -> Request:
    options = SamplingParams(**params)  # type: ignore[arg-type]
    return Request(Text(number, list(prompt), len(prompt), options, options.seed or 0), method, stop_ids)


def finish(engine: Engine, *requests: Request) -> list[list[int]]:
    """Run requests to their end; their outputs."""
    for each in requests:
        engine.add(each)
    while not engine.scheduler.idle:
        engine.step()
    return [each.sequence.output for each in requests]


def one(executor: TableExecutor, method: Method, tokens: int, rng: Rng | None = None, **params: object) -> list[int]:
    """One request on its own engine."""
    engine = Engine(executor, None if rng is None else lambda sequences: rng)
    return finish(engine, request([0, 1], method, max_new_tokens=tokens, **params))[0]
