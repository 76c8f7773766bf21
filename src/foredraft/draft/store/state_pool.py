"""The texts of a namespace's requests by the target's hidden states, which prefilling and verification give for free.

States are kept raw until there are enough to fit the projection on; from then on keys are added as texts grow. The
oldest half goes when the pool is full. Small enough to be searched whole.
"""

from __future__ import annotations

import numpy as np

from .projection import Projection
from .segment import Array
from .state_index import after

END = -1
ENOUGH = 256  # states that a projection is fitted on


class StatePool:
    """At most `most` places."""

    end = END

    def __init__(self, most: int = 16_384) -> None:
        self.most = most
        self.projection: Projection | None = None
        self._ids = np.empty(0, np.int64)
        self._keys: Array | None = None  # [n, k]; raw states [n, d] while there is no projection

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, tokens: list[int], states: Array) -> None:
        """A finished text; states [n, d] are those of its first n tokens, n < len(tokens) + 1."""
        if not len(states):
            return
        ids = np.append(np.array(tokens[: len(states) + 1], np.int64), END)
        missing = len(ids) - len(states)
        padded = np.append(states, np.repeat(states[-1:], missing, axis=0), axis=0)  # nobody asks for the last ones
        new = padded if self.projection is None else self.projection(padded)
        self._ids = np.append(self._ids, ids)
        self._keys = new if self._keys is None else np.append(self._keys, new, axis=0)
        if self.projection is None and len(self._ids) >= ENOUGH:
            self.projection = Projection.fit(self._keys)
            self._keys = self.projection(self._keys)
        if len(self._ids) > self.most:
            self._ids, self._keys = self._ids[-self.most // 2 :], self._keys[-self.most // 2 :]

    def nearest(self, state: Array, count: int, depth: int) -> tuple[Array, Array]:
        """As `StateIndex.nearest`."""
        if self._keys is None:
            return np.empty(0), np.empty((0, depth), np.int64)
        if self.projection is None:  # too few to fit: by cosine of raw states
            lengths = np.linalg.norm(self._keys, axis=1) * max(float(np.linalg.norm(state)), 1e-6)
            near = self._keys @ state / np.maximum(lengths, 1e-6)
        else:
            near = self._keys @ self.projection(state[None])[0]
        ends = self._ids == END
        near = np.where(ends | np.append(ends[1:], True), -np.inf, near)  # nothing follows there
        best = np.argsort(-near, kind="stable")[:count]
        best = best[np.isfinite(near[best])]
        return near[best], after(self._ids, best + 1, depth, END)
