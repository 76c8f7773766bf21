"""The application: routes, errors and the OpenAPI document over one `Service`."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from .api.api_errors import install_handlers
from .api.call import answer
from .api.calls.embeddings import EmbeddingBody, embed
from .api.calls.suggestions import SuggestionBody, suggest_for
from .api.calls.token_calls import DetokenizeBody, TokenizeBody, detokenize, tokenize
from .api.responses_body import ResponsesBody
from .api.schema import Body, ChatBody, CompletionBody
from .engine_thread import State
from .page import page
from .service import Service
from .upkeep.request_ids import RequestIds
from .upkeep.status import status

log = logging.getLogger("foredraft.serve")
Document = dict[str, Any]
BODIES = (ChatBody, CompletionBody, ResponsesBody, SuggestionBody, EmbeddingBody, TokenizeBody, DetokenizeBody)
JOIN_SECONDS = 2.0  # for the engine's last step
_REF = "#/components/schemas/{model}"
_FAILURES = {
    400: "The request is wrong",
    401: "No valid API key",
    403: "The operator does not allow this",
    404: "No such model",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is not application/json",
    429: "The server is full; see Retry-After",
    503: "Loading or shutting down",
}


def create_app(service: Service) -> FastAPI:
    """An ASGI application. It starts the engine's thread when it starts, and cuts what runs when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        log.addFilter(service.errors)
        yield
        log.removeFilter(service.errors)
        service.worker.drain(0.0)
        await run_in_threadpool(service.worker.join, JOIN_SECONDS)
        service.close()

    app = FastAPI(title="foredraft", docs_url=None, redoc_url=None, lifespan=lifespan)
    install_handlers(app, lambda status: service.metrics.refusals.labels(str(status)).inc())
    if service.settings.hosts:  # a page whose name was rebound to this address must not be believed
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(service.settings.hosts), www_redirect=False)
    app.add_middleware(RequestIds, log=service.settings.json_log)
    app.include_router(api(service))
    app.include_router(tokens(service))
    app.include_router(operations(service))
    app.include_router(page(service))
    app.include_router(status(service))
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def api(service: Service) -> APIRouter:
    """What clients call; needs a key where keys are set."""
    born = int(time.time())

    def check_key(request: Request) -> None:
        request.state.client = service.keys.check(request.headers.get("authorization"))

    router = APIRouter(prefix="/v1", dependencies=[Depends(check_key)], responses=_failures())

    @router.post("/chat/completions", openapi_extra=_body(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await answer(service, request, ChatBody)

    @router.post("/completions", openapi_extra=_body(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(service, request, CompletionBody)

    @router.post("/responses", openapi_extra=_body(ResponsesBody))
    async def responses(request: Request) -> Response:
        return await answer(service, request, ResponsesBody)

    @router.post("/suggestions", openapi_extra=_body(SuggestionBody))
    async def suggestions(request: Request) -> Document:
        return await suggest_for(service, request)

    @router.post("/embeddings", openapi_extra=_body(EmbeddingBody))
    async def embeddings(request: Request) -> Response:
        return await embed(service, request)

    @router.get("/models")
    async def models() -> Document:
        return {"object": "list", "data": [card(name) for name in service.models]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> Document:
        service.check_model(name)
        return card(name)

    def card(name: str) -> Document:
        found = {"id": name, "object": "model", "created": born, "owned_by": "foredraft"}
        return found if service.adapter(name) is None else found | {"parent": service.settings.model_name}

    return router


def tokens(service: Service) -> APIRouter:
    """Text to ids and back, at the paths that vLLM has for them; needs a key where keys are set."""

    def check_key(request: Request) -> None:
        request.state.client = service.keys.check(request.headers.get("authorization"))

    router = APIRouter(dependencies=[Depends(check_key)], responses=_failures())

    @router.post("/tokenize", openapi_extra=_body(TokenizeBody))
    async def to_ids(request: Request) -> Document:
        return await tokenize(service, request)

    @router.post("/detokenize", openapi_extra=_body(DetokenizeBody))
    async def to_text(request: Request) -> Document:
        return await detokenize(service, request)

    return router


def operations(service: Service) -> APIRouter:
    """What operators call; open to whoever reaches the port."""
    router = APIRouter()

    @router.get("/health", responses={503: {"description": "Loading, stuck or shutting down"}})
    async def health() -> JSONResponse:
        status = service.worker.health
        return JSONResponse({"status": status}, 200 if status == State.READY.value else 503)

    @router.get("/metrics", response_class=PlainTextResponse, responses={401: {"description": "No valid API key"}})
    def metrics(request: Request) -> Response:
        service.check_operator(request.headers.get("authorization"))
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return router


def openapi(app: FastAPI) -> Document:
    """FastAPI's document with the bodies that we read ourselves, so that size and types are ours to refuse."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        kinds = [(each, "validation") for each in BODIES]
        _, definitions = models_json_schema(kinds, ref_template=_REF)  # type: ignore[arg-type]
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        app.openapi_schema = document
    return app.openapi_schema


def _body(model: type[Body]) -> Document:
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _failures() -> dict[int | str, Document]:
    return {status: {"description": text} for status, text in _FAILURES.items()}
