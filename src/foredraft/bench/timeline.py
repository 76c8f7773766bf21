"""What every target pass of a request took and brought, and the loop that writes it down.

Requests of a batch share a pass's time equally, so that their seconds add up to the wall clock. The harness's own
bookkeeping lies between the passes and is in none of the figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engine import Engine, Request
from ..types import Stats


@dataclass(slots=True)
class Timeline:
    """One entry per target pass after prefill."""

    seconds: list[float] = field(default_factory=list)  # this request's share; the first holds the prefill too
    draft: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)  # nodes
    depth: list[int] = field(default_factory=list)  # levels of the tree, the length of a chain
    accepted: list[int] = field(default_factory=list)
    sharers: list[int] = field(default_factory=list)  # requests of the pass, this one included
    prefill: float = 0.0
    prefill_tokens: int = 0  # tokens that were out when the prefill was over: none here, one in some other engines
    ttft: float = 0.0  # from the start of the batch to the end of the first pass

    def take(self, stats: Stats, before: Stats, seconds: float, sharers: int) -> None:
        """Add one pass: what the request's figures gained by it."""
        self.seconds.append(seconds / sharers)
        self.sharers.append(sharers)
        self.draft.append(stats.draft_seconds - before.draft_seconds)
        self.verify.append(stats.verify_seconds - before.verify_seconds)
        self.emitted.append(stats.emitted - before.emitted)
        self.drafted.append(stats.drafted - before.drafted)
        self.depth.append(sum(stats.drafted_by_position) - sum(before.drafted_by_position))
        self.accepted.append(stats.accepted - before.accepted)
        before.draft_seconds, before.verify_seconds = stats.draft_seconds, stats.verify_seconds
        before.emitted, before.drafted, before.accepted = stats.emitted, stats.drafted, stats.accepted
        before.drafted_by_position = list(stats.drafted_by_position)


def follow(engine: Engine, requests: Sequence[Request]) -> list[Timeline]:
    """Run requests to their ends, all at a time, and write down every pass."""
    lines = {request.id: Timeline() for request in requests}
    seen = {request.id: Stats() for request in requests}
    by_id = {request.id: request for request in requests}
    try:
        for request in requests:
            engine.add(request)
        start = time.perf_counter()
        while any(request.finish_reason is None for request in requests):
            begin = time.perf_counter()
            events = engine.step()
            end = time.perf_counter()
            for event in events:
                line, request = lines[event.request_id], by_id[event.request_id]
                if not line.seconds:
                    line.ttft, line.prefill = end - start, request.stats.prefill_seconds
                line.take(request.stats, seen[event.request_id], end - begin, len(events))
    finally:
        for request in requests:
            engine.cancel(request)
    return [lines[request.id] for request in requests]
