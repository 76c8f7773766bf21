"""An executor whose model is a table: the engine's whole loop runs on it, with distributions known exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...runtime import FINAL, Output, Rows
from ...runtime.base import OwnMemory, WithoutAdapters
from .table_model import Prefix, TableModel


class TableExecutor(WithoutAdapters, OwnMemory):
    """Slots hold token lists; a row's logits are the logarithms of the table's distribution after its path."""

    pads_rows = False
    decoder = capturing = compiled = None

    def __init__(self, model: TableModel, max_slots: int = 1, max_length: int = 64, begin: int = 0) -> None:
        self.model, self.begin = model, begin  # prompt tokens that the table does not look at
        self.name, self.vocab_size, self.hidden_size, self.num_layers = "table", model.vocab, 1, 1
        self.max_length, self.max_slots, self.max_scratch = max_length, max_slots, 64
        self.device = torch.device("cpu")
        self.text: list[list[int]] = [[] for _ in range(max_slots)]
        self.scratch: list[list[tuple[int, int]]] = [[] for _ in range(max_slots)]  # (token, parent row)
        self.passes = 0

    @property
    def captures(self) -> int:
        return 0

    def length(self, slot: int) -> int:
        return len(self.text[slot])

    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        for slot, run in zip(slots, tokens, strict=True):
            self.text[slot] += run
        return [{tap: torch.zeros((len(run), 1)) for tap in taps} for run in tokens]

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        self.passes += 1
        scores, hidden = [], []
        start = 0
        for slot, count in zip(rows.slots, rows.counts, strict=True):
            before = len(self.scratch[slot])
            for i in range(count):
                parent = before + i - 1 if rows.parent is None else int(rows.parent[start + i])
                self.scratch[slot].append((int(rows.token[start + i]), parent))
                path = self._path(slot, before + i)
                assert int(rows.depth[start + i]) == len(path) - 1, "depth does not fit the tree"
                prefix: Prefix = tuple(self.text[slot] + path)[self.begin :]
                scores.append(self.model.logits(prefix))
                hidden.append(float(path[-1]))
            start += count
        states = torch.tensor(hidden)[:, None]
        return Output(torch.from_numpy(np.stack(scores)), {tap: states for tap in (*taps, FINAL)}, rows.index())

    def embed(self, token: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(token, self.vocab_size).to(torch.float32)

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        """A table reads a mixed embedding as the token that it holds most of."""
        return self.forward(replace(rows, token=embeds.argmax(dim=1)), taps, logits)

    def _path(self, slot: int, row: int) -> list[int]:
        path = []
        while row >= 0:
            token, row = self.scratch[slot][row]
            path.append(token)
        return path[::-1]

    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        for b, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            rows = list(range(count)) if keep is None else keep[b, :count].tolist()
            kept = [self.scratch[slot][row] for row in rows]
            for above, (_, parent) in zip([-1, *rows], kept, strict=False):
                assert parent == above, "the rows kept are not a path"
            self.text[slot] += [token for token, _ in kept]
            self.scratch[slot] = []

    def rollback(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            del self.text[slot][length:]
            self.scratch[slot] = []
