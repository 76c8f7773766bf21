"""Errors as the OpenAI API writes them: {"error": {message, type, param, code}} and a fitting status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ...errors import UsageError
from ..upkeep.request_ids import HEADER

log = logging.getLogger("foredraft.serve")
LONGEST_MESSAGE, LONGEST_PLACE = 1000, 200  # characters of what a client sent that are sent back


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = {429: "rate_limit_error"}.get(self.status)
        kind = kind or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, code, param)


def shut_down() -> ApiError:
    return ApiError(503, "the server is shutting down and has cut this answer", "shutdown")


def invalid_body(error: ValidationError) -> ApiError:
    """What is wrong with a body. A value that fits none of several types has one complaint per type."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return bad_request(f"the body is not valid JSON: {found[0]['msg'].removeprefix('Invalid JSON: ')}")
    places = [[str(part) for part in each["loc"]] for each in found]
    field = places[0][0] if places[0] else None
    said = [
        each["msg"].removeprefix("Value error, ")
        for each, place in zip(found, places, strict=True)
        if place[:1] == places[0][:1]
    ]
    messages = " or ".join(dict.fromkeys(said))[:LONGEST_MESSAGE]
    where = ".".join(places[0])[:LONGEST_PLACE] if len(said) == 1 else field
    return bad_request(f"{where}: {messages}" if where else messages, where)


def install_handlers(app: FastAPI, count: Callable[[int], None]) -> None:
    """Every way of failing ends in the same form, and `count` is called with its status."""

    def reply(error: ApiError) -> JSONResponse:
        count(error.status)
        return JSONResponse(error.body, error.status, error.headers)

    @app.exception_handler(ApiError)
    async def known(request: Request, error: ApiError) -> JSONResponse:
        return reply(error)

    @app.exception_handler(UsageError)
    async def usage(request: Request, error: UsageError) -> JSONResponse:
        return reply(bad_request(str(error)))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{HTTPStatus(error.status_code).phrase}: {request.method} {request.url.path}"
        return reply(ApiError(error.status_code, message, headers=error.headers))

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "the server failed to handle this request; its log says why"
        return reply(ApiError(500, message, headers={HEADER: request.state.request_id}))
