"""From bytes to a checked body: not more bytes than allowed, valid JSON in valid UTF-8, the right types."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from .api_errors import ApiError, bad_request, invalid_body
from .schema import Generation

Model = TypeVar("Model", bound=Generation)
SURPLUS = 8 << 20  # bytes beyond the limit that are read and forgotten
CLOSE = {"Connection": "close"}  # the rest of the body is not wanted


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The body, if it is not too long. Some of what is too much is still read, and forgotten: a client that is in the
    middle of sending would not see an answer.
    """
    too_long = ApiError(413, f"the body exceeds {limit} bytes", "request_too_large", headers=CLOSE)
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit + SURPLUS:
        raise too_long
    data, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    data += part
                elif size > limit + SURPLUS:
                    break
    except ClientDisconnect:
        raise bad_request("the connection was closed within the body") from None
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {seconds:g} s", "timeout", headers=CLOSE) from None
    if size > limit:
        raise too_long
    return bytes(data)


def parse(model: type[Model], data: bytes) -> Model:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise invalid_body(error) from None
