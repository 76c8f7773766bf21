"""`/v1/embeddings`: the target's own states of a text, pooled and brought to length 1.

They are states of a causal model that was trained to write, not to compare texts: a token's state knows what comes
before it and nothing after. The engine's thread reads a text between its steps, a piece at a time, in a slot that is
borrowed meanwhile; others go on writing.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import torch
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from torch import Tensor

from ....engine.sharing import usual_piece
from ....engine.slots import Kept
from ....recipes import LLM
from ....runtime import FINAL
from ...admission import too_busy
from ...service import Service
from ..api_errors import ApiError, bad_request
from ..body import check_type, parse, read_body
from ..parse import encode, prompts_of
from ..schema import Body, Prompts, Unsupported
from ..sse import ClientGoneError, unless_gone

CLIENT_CLOSED = 499  # for the log alone
Pooling = Literal["mean", "last"]
Done = TypeVar("Done")


class EmbeddingBody(Body):
    """POST /v1/embeddings"""

    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Pooling | None = Field(default=None, description="Mean of all states, or the last one. Our own field.")
    dimensions: Unsupported = None


class BorrowedSlot:
    """A slot that no request has, for texts that are only read. Every verb is for the engine's thread."""

    def __init__(self) -> None:
        self._slot: int | None = None

    def take(self, llm: LLM) -> int:
        """The slot; an error that says when to come back if there is none."""
        if self._slot is None:
            slots = llm.engine.scheduler.slots
            if not len(slots):
                raise too_busy("all slots are busy")
            self._slot, _ = slots.take(())
            llm.engine.executor.rollback([self._slot], [0])
        return self._slot

    def give_back(self, llm: LLM) -> None:
        if self._slot is not None:
            llm.engine.executor.rollback([self._slot], [0])
            llm.engine.scheduler.slots.give(self._slot, Kept())
            self._slot = None

    def read(self, llm: LLM, tokens: list[int], begin: int) -> Tensor:
        """[n, d] float32 states of tokens that follow the first `begin` ones of the same text."""
        slot, executor = self.take(llm), llm.engine.executor
        executor.rollback([slot], [begin])
        return executor.prefill([slot], [tokens], {FINAL})[0][FINAL].to("cpu", torch.float32)


async def embed(service: Service, http: HttpRequest) -> Response:
    """Read, check, let the engine's thread read the texts, and pool."""
    service.ready()
    check_type(http)
    client = http.state.client
    data = await read_body(http, service.limits, service.bodies)
    body = await run_in_threadpool(parse, EmbeddingBody, data, service.limits.body_bytes)
    service.check_model(body.model, adapters=False)
    texts = await run_in_threadpool(_ids, service, body)
    service.admission.enter(1, client)
    try:
        work = _vectors(service, texts, body.pooling or "mean")
        vectors = await unless_gone(http.receive, work, service.limits.seconds)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED)
    except TimeoutError:
        raise ApiError(504, f"the texts were not read within {service.limits.seconds:g} s", "timeout") from None
    finally:
        service.admission.written(client)
        service.admission.sent()
    return JSONResponse(_document(body, vectors, sum(map(len, texts))))


def _ids(service: Service, body: EmbeddingBody) -> list[list[int]]:
    size, found = service.worker.engine.executor.vocab_size, []
    for text in prompts_of(body.input):
        ids = encode(service, text) if isinstance(text, str) else text
        if not ids or not all(0 <= token < size for token in ids):
            raise bad_request(f"a text needs at least one token, and ids from 0 to {size - 1}", "input")
        service.check_prompt(len(ids))
        found.append(ids)
    return found


async def _vectors(service: Service, texts: list[list[int]], pooling: Pooling) -> list[Tensor]:
    slot, worker = BorrowedSlot(), service.worker
    size = service.settings.prompt_tokens or usual_piece(worker.engine.executor.device)

    async def between_steps(task: Callable[[LLM], Done]) -> Done:
        return await asyncio.wrap_future(worker.call(task))

    try:
        found = []
        for text in texts:
            total, last = torch.zeros(0), torch.zeros(0)
            for begin, piece in _pieces(text, size):
                states = await between_steps(lambda llm, piece=piece, begin=begin: slot.read(llm, piece, begin))  # type: ignore[misc]
                total = states.sum(dim=0) + (total if begin else 0.0)
                last = states[-1]
            found.append(torch.nn.functional.normalize(total if pooling == "mean" else last, dim=0))
            service.metrics.prompt_tokens.inc(len(text))
        return found
    finally:
        worker.call(slot.give_back)  # in order after whatever was asked before, even if nobody waits for that any more


def _pieces(text: list[int], size: int) -> Iterator[tuple[int, list[int]]]:
    return ((begin, text[begin : begin + size]) for begin in range(0, len(text), size))


def _document(body: EmbeddingBody, vectors: list[Tensor], count: int) -> dict[str, Any]:
    write = _base64 if body.encoding_format == "base64" else Tensor.tolist
    data = [{"object": "embedding", "index": i, "embedding": write(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


def _base64(vector: Tensor) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
