"""After a step that raised: each request takes it alone, so that whoever makes it raise hurts nobody else.

A step that is taken again draws the same random numbers (they are keyed by request, round and position), so texts stay
what they would have been.
"""

from __future__ import annotations

import logging

from ..engine import Engine, Request
from ..errors import ForedraftError
from ..types import Event

log = logging.getLogger("foredraft.serve")


class EngineFailedError(ForedraftError):
    """No request gets anything out of the engine any more."""


def step_alone(engine: Engine, request: Request) -> list[Event] | None:
    """One step in which a running request is the only one; None = it raised.

    Text whose K/V did not survive is read again, and so is a piece of a prompt that was not finished.
    """
    scheduler = engine.scheduler
    others = [other for other in scheduler.running if other is not request]
    waiting, place = list(scheduler.waiting), scheduler.running.index(request)
    request.read = min(request.read, engine.executor.length(request.sequence.slot))
    scheduler.running = [request]
    scheduler.waiting.clear()
    try:
        return engine.step()
    except Exception:
        log.exception("request %d makes a step of the engine fail", request.id)
        return None
    finally:
        left = scheduler.running  # empty if the request has finished
        scheduler.running = [*others[:place], *left, *others[place:]]
        scheduler.waiting.extend(waiting)
