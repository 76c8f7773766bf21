"""From bytes to a checked body: not more bytes than allowed, valid JSON in valid UTF-8, the right types."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from ..admission import BODIES, BYTES, BodyBudget
from ..settings import Limits
from .api_errors import ApiError, bad_request, invalid_body
from .schema import Body

Model = TypeVar("Model", bound=Body)
SURPLUS = 8 << 20  # bytes beyond the limit that are read and forgotten
CLOSE = {"Connection": "close"}  # the rest of the body is not wanted


def check_type(request: Request) -> None:
    """JSON and nothing else: a browser sends other types to any server, from any web page, without asking."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send the body as Content-Type: application/json", "unsupported_media_type", headers=CLOSE)


async def read_body(request: Request, limits: Limits, budget: BodyBudget) -> bytes:
    """The body, if it is not too long, too slow, or one too many. Some of what is too much is still read, and
    forgotten: a client that is in the middle of sending would not see an answer.
    """
    limit, seconds, client = limits.body_bytes, limits.body_seconds, request.state.client
    too_long = ApiError(413, f"the body exceeds {limit} bytes", "request_too_large", headers=CLOSE)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit + SURPLUS:
        raise too_long
    data, size = bytearray(), 0
    budget.take(BODIES, 1, client)
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    budget.take(BYTES, len(part), client)
                    data += part
                elif size > limit + SURPLUS:
                    break
    except ClientDisconnect:
        raise bad_request("the connection was closed within the body") from None
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {seconds:g} s", "timeout", headers=CLOSE) from None
    finally:
        budget.give_back(BODIES, 1, client)
        budget.give_back(BYTES, len(data), client)
    if size > limit:
        raise too_long
    return bytes(data)


def check_size(data: bytes, limit: int) -> None:
    """Refuse more lists, objects, values and strings than a sensible body of this size has: every one of them costs a
    hundred times its bytes to read, and the interpreter's lock meanwhile. A look at the bytes costs little. What is
    left takes some 20 ms at most.
    """
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = bare.split(b'"', 2 * (strings := max(limit // 16, 16384)) + 2)
    if len(parts) > 2 * strings + 1:
        raise bad_request(f"the body holds more than {strings} strings")
    outside = b"".join(parts[::2])
    for what, count, most in (
        ("lists and objects", outside.count(b"[") + outside.count(b"{"), max(limit // 64, 1024)),
        ("values", outside.count(b","), max(limit // 8, 16384)),
    ):
        if count > most:
            raise bad_request(f"the body holds {count} {what}; this server reads {most}")


def parse(model: type[Model], data: bytes, limit: int) -> Model:
    """The checked body; `limit` is that of bodies."""
    check_size(data, limit)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise invalid_body(error) from None
