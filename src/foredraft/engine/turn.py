"""One method's part of a step: its requests, and what each stage of the loop adds for them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.sampling import LogitLaws
from ..runtime import Output
from ..types import DraftBatch, Event, Sequence, StepTrace, TreeVerdict, Verdict
from .method import Method
from .request import Request
from .sampler import logprobs_of
from .trace import trace_step

DAMAGED = "the model produced NaN or allowed no token at all; its weights or the grammar may be damaged"


@dataclass(slots=True)
class Turn:
    """Filled in from left to right by `Engine.step`."""

    method: Method
    requests: list[Request]
    drafting: bool  # False: no room or no drafter, so the round is plain decoding
    drafts: DraftBatch = field(init=False)
    out: Output = field(init=False)
    rows: LogitLaws = field(init=False)
    verdict: Verdict = field(init=False)
    decided: list[TreeVerdict] = field(init=False)  # the verdict on the host
    bad: list[list[bool]] = field(init=False)  # rows whose law was no law

    @property
    def sequences(self) -> list[Sequence]:
        return [request.sequence for request in self.requests]

    def read_back(self) -> None:
        self.decided = [self.verdict.row(b) for b in range(len(self.requests))]
        self.bad = self.rows.bad.tolist()

    def advance(self, b: int, max_length: int) -> Event:
        """Hand one request its tokens."""
        request, verdict = self.requests[b], self.decided[b]
        visited = [0, *(node + 1 for node in verdict.path)]  # rows on the accepted path; others may be void
        if any(self.bad[b][row] for row in visited):
            request.error, request.finish_reason = DAMAGED, "error"
            return Event(request.id, [], [], None, "error")
        drafted = self.drafts.lengths()[b]
        line = self.drafts.token[b, :drafted].tolist()
        tokens = [line[node] for node in verdict.path] + [verdict.token]
        taken = request.take(tokens, verdict, max_length)
        depth = int(self.drafts.depth[b, :drafted].max()) if drafted else 0
        request.count(depth, min(len(verdict.path), taken), drafted, taken)
        logprobs = self._logprobs(b, tokens[:taken])
        trace = self._trace(b, tokens[:taken]) if request.trace else None
        return Event(request.id, tokens[:taken], verdict.reasons[:taken], logprobs, request.finish_reason, trace)

    def _logprobs(self, b: int, tokens: list[int]) -> list[dict[int, float]] | None:
        request = self.requests[b]
        top = request.sequence.params.logprobs
        if top is None:
            return None
        found = logprobs_of(self.out.logits, self._predicting(b, len(tokens)), tokens, top)
        request.logprobs += found
        return found

    def _trace(self, b: int, tokens: list[int]) -> StepTrace:
        rows = self._predicting(b, len(tokens))
        return trace_step(self.out.logits, rows, tokens, self.drafts.tree(b), self.decided[b].path)

    def _predicting(self, b: int, count: int) -> Tensor:
        """Packed rows that predicted the first tokens. A token's is the one above it: the root's, then the path's."""
        rows = [0, *(node + 1 for node in self.decided[b].path)][:count]
        return self.out.index[b, torch.tensor(rows, dtype=torch.int64)]
