"""The sampler of a batch: hands each rule the target's distributions, with the options of each request applied."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from ..core.distributions.masks import RowMasks, words
from ..core.distributions.sampling import LogitDistributions, ParamBlock
from ..runtime import Output
from ..types import DraftBatch
from .request import Request
from .slot_counts import SlotCounts


class Sampler:
    """Keeps the option tensors of a group of requests while the group stays the same."""

    def __init__(self, vocab_size: int, device: torch.device, slots: int) -> None:
        self.vocab_size, self.device, self.slots = vocab_size, device, slots
        self._counts: SlotCounts | None = None  # of texts with penalties
        self._blocks: deque[tuple[list[Request], ParamBlock]] = deque(maxlen=8)

    def rows(self, requests: list[Request], drafts: DraftBatch, out: Output) -> LogitDistributions:
        """The distribution p of every row, worked out when a rule visits it."""
        block = self._block(requests)
        counts = self.counts.of([r.sequence for r in requests]) if block.penalised else None
        return LogitDistributions(out.logits, out.index, block, drafts, counts, self._masks(requests, drafts))

    @property
    def counts(self) -> SlotCounts:
        if self._counts is None:
            self._counts = SlotCounts(self.slots, self.vocab_size, self.device)
        return self._counts

    def _masks(self, requests: list[Request], drafts: DraftBatch) -> RowMasks | None:
        """What each request's grammar allows at each row, given the drafted path to it."""
        if all(request.constraint is None for request in requests):
            return None
        line = torch.zeros((len(requests), drafts.width + 1), dtype=torch.int64)
        lines = [torch.full((1, words(self.vocab_size)), -1, dtype=torch.int32)]  # line 0 allows everything
        used = 1
        for b, request in enumerate(requests):
            if request.constraint is not None:
                tree = drafts.tree(b)
                rows = len(tree.token) + 1
                bits = lines[0].repeat(rows, 1)
                request.constraint.fill(request.sequence.output, tree.token, tree.parent, bits)
                line[b, :rows] = torch.arange(used, used + rows)
                lines.append(bits)
                used += rows
        return RowMasks(torch.cat(lines).to(self.device), line.to(self.device), self.vocab_size)

    def _block(self, requests: list[Request]) -> ParamBlock:
        for known, block in self._blocks:
            if len(known) == len(requests) and all(a is b for a, b in zip(known, requests, strict=True)):
                return block
        block = ParamBlock.of([r.sequence.params for r in requests], self.vocab_size, self.device)
        self._blocks.append((list(requests), block))
        return block


def logprobs_of(logits: Tensor, rows: Tensor, tokens: list[int], top: int) -> list[dict[int, float]]:
    """Per emitted token: its own log-probability under the raw logits, then those of the `top` most likely ones."""
    scores = torch.log_softmax(logits[rows].to(torch.float32), dim=1)
    found = []
    for line, token in zip(scores, tokens, strict=True):
        entry = {token: float(line[token])}
        if top:
            values, ids = line.topk(top)
            entry |= {int(i): float(v) for i, v in zip(ids, values, strict=True)}
        found.append(entry)
    return found
