"""After a step that raised: each request takes it alone, so that whoever makes it raise hurts nobody else.

A step that is taken again draws the same random numbers (they are keyed by request, round and position), so texts stay
what they would have been.
"""

from __future__ import annotations

import logging

from ..engine import Engine, Method, Request
from ..errors import ForedraftError
from ..recipes import LLM
from ..types import Event, SamplingParams

log = logging.getLogger("foredraft.serve")
TRIAL_STEPS = 3  # in which one token must come


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


def works(llm: LLM, plain: Method) -> bool:
    """Whether an engine at rest still writes a token for a prompt that cannot be at fault."""
    token = min(llm.target.eos_ids, default=0)
    request = llm.request([token], SamplingParams(max_new_tokens=1), plain)
    request.sequence.namespace = None
    try:
        llm.engine.add(request)
        for _ in range(TRIAL_STEPS):
            if request.finish_reason is None:
                llm.engine.step()
    except Exception:
        log.exception("the engine fails a request of its own")
    finally:
        llm.engine.cancel(request)
    return request.finish_reason in ("stop", "length")
