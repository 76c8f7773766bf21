"""What earlier requests have left for later ones, kept apart by namespace: one client's text never drafts for another.

A namespace is any name (`Sequence.namespace`); None shares with nobody. Knows nothing of what is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Store = TypeVar("Store")
MAX_NAMESPACES = 64  # beyond them, the least recently used one is forgotten


class Namespaces(Generic[Store]):
    """One store per namespace, made when it is first asked for."""

    def __init__(self, make: Callable[[], Store], limit: int = MAX_NAMESPACES) -> None:
        self._make, self._limit = make, limit
        self._stores: OrderedDict[str, Store] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stores)

    def of(self, name: str | None) -> Store:
        """The store of a namespace; without a name a fresh one that nobody else will see."""
        if name is None:
            return self._make()
        if name not in self._stores:
            self._stores[name] = self._make()
            if len(self._stores) > self._limit:
                self._stores.popitem(last=False)
        self._stores.move_to_end(name)
        return self._stores[name]
