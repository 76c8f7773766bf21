"""One call of the API that writes text, from its body to its last token."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ...engine import Request
from ...engine.method_group import DAMAGED
from ...models import Tokenizer
from ..grammars.json_grammar import JsonConstraint
from ..grammars.structure import wanted_schema
from ..service import Service
from .api_errors import ApiError, bad_request, shut_down
from .assemble import ChoiceAssembler, Piece, prompt_scores, usage
from .body import CLOSE, check_type, parse, read_body
from .parse import build_requests, count_answers, echoes
from .responses import ChatResponse, CompletionResponse
from .responses_api import ResponsesResponse
from .responses_body import ResponsesBody, ResponsesChat
from .schema import ChatBody, CompletionBody
from .sse import LAST_EVENT, ClientGoneError, EventStream, event, unless_gone
from .tools import wanted_tools

AnyBody = ChatBody | CompletionBody
Asked = type[ChatBody] | type[CompletionBody] | type[ResponsesBody]
Made = TypeVar("Made")
DELIVERY = 30.0  # seconds beyond a job's own time in which a reader may fetch what is ready
CLIENT_CLOSED = 499  # for the log alone


async def answer(service: Service, http: HttpRequest, kind: Asked) -> Response:
    """Read, check, queue, and reply whole or in a stream."""
    arrived, client = time.monotonic(), http.state.client
    body = await receive(service, http, kind)
    schema = wanted_schema(body)
    if schema is not None:
        try:
            await unless_gone(http.receive, service.grammars.check(schema, client), service.limits.seconds)
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED)
        except TimeoutError:
            raise overdue(service.limits.seconds) from None
    requests = await run_in_threadpool(build_requests, service, body, client)
    call = Call(service, body, requests, client, arrived)
    seconds = call.job.seconds_left + DELIVERY
    if body.stream:
        return EventStream(call.stream(), seconds, call.close)
    try:
        return JSONResponse(await unless_gone(http.receive, call.whole(), seconds))
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED)
    except TimeoutError:  # the engine itself is stuck
        raise overdue(service.limits.seconds) from None
    finally:
        call.close()


async def receive(service: Service, http: HttpRequest, kind: Asked) -> AnyBody:
    """The checked body of a call that could be admitted; nothing costly is done before that is known."""
    service.ready()
    check_type(http)
    try:
        service.admission.check(1, http.state.client)
    except ApiError as error:
        error.headers |= CLOSE  # its body is not read
        raise
    data = await read_body(http, service.limits, service.bodies)
    parsed = await run_in_threadpool(parse, kind, data, service.limits.body_bytes)
    body: AnyBody = parsed.as_chat() if isinstance(parsed, ResponsesBody) else parsed
    service.check_model(body.model)
    check_sense(body)
    service.admission.check(count_answers(body), http.state.client)
    return body


def check_sense(body: AnyBody) -> None:
    """Refuse what types cannot: options that contradict one another."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is for streams; set stream to true", "stream_options")
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
        if body.continue_final_message and (body.add_generation_prompt or body.messages[-1].role != "assistant"):
            message = "an assistant's last message can be continued, without add_generation_prompt"
            raise bad_request(message, "continue_final_message")
        return
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens of 0 gives the prompt alone, which needs echo to be true", "max_tokens")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request("this server does not rank answers; leave best_of out", "best_of")


class Call:
    """An admitted call; `close` it, whatever happens."""

    def __init__(self, service: Service, body: AnyBody, requests: list[Request], client: str, arrived: float) -> None:
        self._service, self._body, self._requests = service, body, requests
        self._reads_only = body.max_tokens == 0  # what is written to have the prompt read is not handed out
        tokenizer = service.ready().tokenizer
        self._response = response_to(body, requests, tokenizer, service.fingerprint)
        calls = isinstance(body, ChatBody) and bool(wanted_tools(body))
        self._assemblers = [ChoiceAssembler(i, request, tokenizer, calls) for i, request in enumerate(requests)]
        self.job = service.admit(requests, client, arrived)

    def close(self) -> None:
        self._service.release(self.job)

    async def whole(self) -> dict[str, Any]:
        answers = [Piece(index) for index in range(len(self._requests))]
        async for piece in self._pieces():
            answers[piece.index].add(piece)
        return await self._off_loop(lambda: self._response.whole(answers, self._usage()))

    async def stream(self) -> AsyncGenerator[bytes, None]:
        if isinstance(self._response, ResponsesResponse):
            async for part in self._response.stream(self._pieces(), self._usage):
                yield part
            return
        wants_usage = self._body.stream_options is not None and bool(self._body.stream_options.include_usage)
        extra = {"usage": None} if wants_usage else {}
        opened: set[int] = set()
        async for piece in self._pieces():
            if piece.index not in opened:
                opened.add(piece.index)
                opening = await self._off_loop(partial(self._response.opening, piece.index))
                if opening is not None:
                    yield event(opening | extra)
            if piece.says_something or self._body.return_token_ids:
                yield event(self._response.chunk(piece) | extra)
        if wants_usage:
            yield event(self._response.closing(self._usage()))
        yield LAST_EVENT

    async def _pieces(self) -> AsyncIterator[Piece]:
        """Of each choice what has come since the last look, as one piece: whoever reads slowly reads fewer of them."""
        async for written in self.job.events():
            pieces: dict[int, Piece] = {}
            failed: ApiError | None = None
            for index, each in written:
                if each.finish_reason not in (None, "stop", "length"):
                    failed = failure(self._requests[index], each.finish_reason, self._service.limits.seconds)
                    break
                new = self._assemblers[index].push(each)
                if self._reads_only:
                    new = Piece(index, finish_reason=each.finish_reason and "length")
                if index in pieces:
                    pieces[index].add(new)
                else:
                    pieces[index] = new
            for piece in pieces.values():
                yield piece
            if failed is not None:
                raise failed

    async def _off_loop(self, make: Callable[[], Made]) -> Made:
        """What holds the scores of a prompt is put together in a thread: for a long one that takes a tenth of a second
        and more, a choice.
        """
        return make() if self._body.prompt_alternatives is None else await run_in_threadpool(make)

    def _usage(self) -> dict[str, Any]:
        prompts = len(self._requests) // (self._body.n or 1)
        return usage(self._requests, prompts, self._service.settings.traces, self._reads_only)


def response_to(
    body: AnyBody, requests: list[Request], tokenizer: Tokenizer, fingerprint: str
) -> ChatResponse | CompletionResponse | ResponsesResponse:
    """The form in which a body is answered."""
    if isinstance(body, ResponsesChat):
        return ResponsesResponse(body)
    if isinstance(body, ChatBody):
        return ChatResponse(body, fingerprint)
    read = lambda index: prompt_scores(requests[index], tokenizer)  # noqa: E731
    return CompletionResponse(body, echoes(body, tokenizer), fingerprint, read)


def failure(request: Request, reason: str | None, seconds: float) -> ApiError:
    """The error of a request that did not end by itself."""
    if reason == "timeout":
        return overdue(seconds)
    if reason in ("shutdown", "cancelled"):
        return shut_down()
    if isinstance(request.constraint, JsonConstraint) and request.error == DAMAGED:
        return bad_request("the schema leads into a dead end: no token is allowed any more", "response_format")
    return ApiError(500, request.error or "the engine failed", "engine_error")


def overdue(seconds: float) -> ApiError:
    return ApiError(504, f"the answer was not ready within {seconds:g} s", "timeout")
