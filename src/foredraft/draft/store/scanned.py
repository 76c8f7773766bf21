"""A text in memory that is searched from end to end: the reference that a datastore is tested against, and what table
models look things up in."""

from __future__ import annotations

import numpy as np

from .datastore import LONGEST, SHORTEST, Hits

END = -1


class ScannedText:
    """Documents of token ids."""

    end = END

    def __init__(self, documents: list[list[int]]) -> None:
        self.documents = documents

    def look_up(
        self, context: list[int], depth: int, most: int = 512, longest: int = LONGEST, shortest: int = SHORTEST
    ) -> Hits:
        """As `Datastore.look_up`; of many places the first."""
        for matched in range(min(longest, len(context)), shortest - 1, -1):
            query = context[-matched:]
            found = [
                (document[i + matched : i + matched + depth] + [END] * depth)[:depth]
                for document in self.documents
                for i in range(len(document) - matched + 1)
                if document[i : i + matched] == query
            ]
            if found:
                return Hits(matched, len(found), np.array(sorted(found)[:most], np.int64).reshape(-1, depth))
        return Hits(0, 0, np.empty((0, depth), np.int64))
