"""`/tokenize` and `/detokenize`, with the names that vLLM gave them. They need no slot, and little time."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ...service import Service
from ..api_errors import bad_request
from ..body import check_type, parse, read_body
from ..call import check_sense
from ..parse import chat_ids, encode
from ..schema import MAX_INT, MAX_MESSAGES, MAX_TOOLS, Body, ChatBody, Message, Tool

Document = dict[str, Any]
Asked = TypeVar("Asked", bound="TokenizeBody | DetokenizeBody")
MOST_IDS = 1 << 18
RENDERED = (  # what of a chat decides its ids
    "messages",
    "tools",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)


class TokenizeBody(Body):
    """POST /tokenize"""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = Field(
        default=None, description="Default: of a prompt; templates do so themselves."
    )
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """POST /detokenize"""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(fail_fast=True, max_length=MOST_IDS)]


async def tokenize(service: Service, http: HttpRequest) -> Document:
    body = await _read(service, http, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("give either a prompt or messages", "prompt")
    ids = await run_in_threadpool(_ids, service, body)
    return {"count": len(ids), "max_model_len": service.worker.engine.executor.max_length, "tokens": ids}


def _ids(service: Service, body: TokenizeBody) -> list[int]:
    if body.messages is not None:
        chat = ChatBody(model=service.settings.model_name, **{name: getattr(body, name) for name in RENDERED})
        check_sense(chat)
        return chat_ids(service, chat)
    assert body.prompt is not None
    return encode(service, body.prompt, body.add_special_tokens is not False)


async def detokenize(service: Service, http: HttpRequest) -> Document:
    body = await _read(service, http, DetokenizeBody)
    tokenizer, size = service.worker.llm.tokenizer, service.worker.engine.executor.vocab_size
    if any(token >= size for token in body.tokens):
        raise bad_request(f"a token is beyond the vocabulary of {size}", "tokens")
    return {"prompt": await run_in_threadpool(tokenizer.decode, body.tokens, False)}


async def _read(service: Service, http: HttpRequest, kind: type[Asked]) -> Asked:
    service.ready()
    check_type(http)
    data = await read_body(http, service.limits, service.bodies)
    body = await run_in_threadpool(parse, kind, data, service.limits.body_bytes)
    if body.model is not None:
        service.check_model(body.model)
    return body
