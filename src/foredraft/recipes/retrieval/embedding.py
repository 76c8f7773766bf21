"""A datastore through the eyes of a target: its hidden states at every token, window by window."""

from __future__ import annotations

import numpy as np

from ...draft.store.datastore import Datastore, Report
from ...draft.store.segment import Array
from ...draft.store.state_index import build_states, faiss
from ...runtime import FINAL
from ..loading import Loaded
from ..trained import weights_of


def embed_store(store: Datastore, target: Loaded, window: int, most: int | None, report: Report | None = None) -> int:
    """Read the store's documents and keep states; tokens that were read."""
    faiss()  # before an hour of reading, not after it
    executor = target.executor
    size = min(window, executor.max_length)

    def states_of(tokens: list[int]) -> Array:
        """[n, d]; every window begins afresh."""
        found = []
        for begin in range(0, len(tokens), size):
            executor.rollback([0], [0])
            states = executor.prefill([0], [tokens[begin : begin + size]], {FINAL})[0][FINAL]
            found.append(states.float().cpu().numpy())
        executor.rollback([0], [0])
        return np.concatenate(found)

    return build_states(store, states_of, weights_of(target), most, report)
