"""The page at `/`: a chat in the browser that shows who wrote each token. Its files lie in `static`, read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .options.capabilities import list_options
from .service import Service

INDEX = "index.html"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Nothing from elsewhere, nothing inline, no frames: text that a model writes can at worst be read.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def static() -> dict[str, bytes]:
    """The page's files by name."""
    found = files(__package__).joinpath("static").iterdir()
    return {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in _TYPES}


def page(service: Service) -> APIRouter:
    """The files are open to whoever reaches the port; what may be chosen needs a key where keys are set."""
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return page_file(INDEX)

    @router.get("/page/options", responses={401: {"description": "No valid API key"}, 503: {"description": "Loading"}})
    async def options(request: Request) -> dict[str, Any]:
        service.keys.check(request.headers.get("authorization"))
        return list_options(service)

    @router.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return page_file(name)

    return router


def page_file(name: str) -> Response:
    """A file of `static`, with headers that let it ask this server alone."""
    if name not in static():
        raise HTTPException(404)
    return Response(static()[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
