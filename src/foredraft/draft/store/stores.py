"""Which datastores a request may see: those of everybody, and those of its own namespace.

Spelled `FOLDER`, or several with semicolons between, `CLIENT=FOLDER` for those of one client. A namespace is a client's
name, with more after a slash where the client divides its own requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ...errors import UsageError
from .datastore import Hits

EVERYBODY = ""
Found = TypeVar("Found")


class Texts(Protocol):
    """Where continuations are looked up: a datastore, or whatever answers like one."""

    @property
    def end(self) -> int:
        """Fills what lies after the end of a document."""

    def look_up(self, context: list[int], depth: int, most: int, longest: int = ..., shortest: int = ...) -> Hits:
        """What followed the longest end of the context that occurs, at no more than `most` places."""


class Stores(Generic[Found]):
    """Open stores, or indices of them, by the client that may see them."""

    def __init__(self, stores: Mapping[str, Sequence[Found]]) -> None:
        self._stores = {client: list(found) for client, found in stores.items()}

    @classmethod
    def spelled(cls, text: str, open_store: Callable[[str], Found]) -> Stores[Found]:
        found: dict[str, list[Found]] = {}
        for piece in filter(None, (part.strip() for part in text.split(";"))):
            client, sign, folder = piece.partition("=")
            if sign and not (client and folder):
                raise UsageError(f"store {piece!r}: write FOLDER, or CLIENT=FOLDER for a store of one client")
            found.setdefault(client if sign else EVERYBODY, []).append(open_store(folder if sign else piece))
        if not found:
            raise UsageError("no store is named; make one: foredraft store build FILES.. --out FOLDER")
        return cls(found)

    def of(self, namespace: str | None) -> list[Found]:
        """What a request of this namespace may see."""
        client = (namespace or EVERYBODY).partition("/")[0]
        own = self._stores.get(client, []) if client != EVERYBODY else []
        return [*own, *self._stores.get(EVERYBODY, [])]


def look_up(stores: Sequence[Texts], context: list[int], depth: int, most: int) -> Hits:
    """The longest match in any of several stores, which must have one END; equal ones together."""
    found = [store.look_up(context, depth, most) for store in stores]
    best = max((hits.matched for hits in found), default=0)
    equal = [hits for hits in found if hits.matched == best and best]
    if len(equal) == 1:
        return equal[0]
    if not equal:
        return Hits(0, 0, np.empty((0, depth), np.int64))
    rows = np.concatenate([hits.rows for hits in equal])
    return Hits(best, sum(hits.places for hits in equal), rows[np.lexsort(rows.T[::-1])])
