"""A name for every request in its reply's headers: the client's own, if it sent a sensible one, or a new one."""

from __future__ import annotations

import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .json_log import log_request

HEADER = "x-request-id"
SENSIBLE = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class RequestIds:
    """ASGI middleware. The name is in `scope["state"]["request_id"]` too, for logs."""

    def __init__(self, app: ASGIApp, log: bool = False) -> None:
        """`log`: whether every request is logged when it is over."""
        self._app, self._log = app, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER.encode(), b"").decode("latin-1")
        name = given if SENSIBLE.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = name
        began, status = time.monotonic(), [0]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
                status[0] = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception:  # answered outside of this, by the handler of unknown errors
            status[0] = status[0] or 500
            raise
        finally:
            if self._log:
                log_request(dict(scope), status[0], time.monotonic() - began)
