"""Continuations of a text as it is typed, several by one pass a token (superposed decoding). Our own call.

They are suggestions: no rule verifies them. The engine makes them between two steps, in a slot that nobody uses, so the
text that is looked at and what is written are kept short: everybody else waits meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ....errors import UsageError
from ....recipes import LLM
from ....recipes.retrieval.completions import Suggestion, suggestions
from ...service import Service
from ..api_errors import ApiError, bad_request
from ..body import check_type, parse, read_body
from ..schema import Body
from .embeddings import BorrowedSlot

LONGEST_TEXT = 256  # newest tokens of the text that are read
CHARACTERS = 16  # of a token, at most: the text before is not even looked at
SECONDS = 30.0


class SuggestionBody(Body):
    """POST /v1/suggestions"""

    model: str
    prompt: str = Field(min_length=1, description="What was typed so far.")
    k: int = Field(default=3, ge=1, le=8, description="Continuations.")
    max_tokens: int = Field(default=8, ge=1, le=16, description="Tokens of each.")


async def suggest_for(service: Service, http: HttpRequest) -> dict[str, Any]:
    """Read, check, and ask the engine's thread."""
    service.ready()
    check_type(http)
    client = http.state.client
    data = await read_body(http, service.limits, service.bodies)
    body = await run_in_threadpool(parse, SuggestionBody, data, service.limits.body_bytes)
    service.check_model(body.model, adapters=False)
    service.admission.enter(1, client)
    try:
        made = service.worker.call(lambda llm: _suggest(llm, body, service.settings.namespace(client, None)))
        found = await asyncio.wait_for(asyncio.wrap_future(made), SECONDS)
    except UsageError as error:
        raise bad_request(str(error), "prompt") from None
    except TimeoutError:
        raise ApiError(504, f"no suggestions within {SECONDS:g} s", "timeout") from None
    finally:
        service.admission.written(client)
        service.admission.sent()
    choices = [{"index": i, "text": each.text, "score": round(each.score, 3)} for i, each in enumerate(found)]
    return {"object": "suggestions", "model": body.model, "choices": choices}


def _suggest(llm: LLM, body: SuggestionBody, namespace: str | None) -> list[Suggestion]:
    """On the engine's thread, between two steps."""
    borrowed, longest = BorrowedSlot(), min(LONGEST_TEXT, llm.engine.executor.max_length - body.max_tokens)
    tokens = llm.tokenizer.encode(body.prompt[-CHARACTERS * LONGEST_TEXT :])[-longest:]
    stores = [] if llm.options.store is None else llm.factory.stores(llm.options.store).of(namespace)
    try:
        return suggestions(llm, tokens, body.k, body.max_tokens, stores, borrowed.take(llm)).choices
    finally:
        borrowed.give_back(llm)
