"""One method's part of a step: its requests, and what each stage of the loop adds for them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.distributions.sampling import LogitDistributions
from ..draft import Drafter
from ..runtime import Output
from ..types import DraftBatch, Event, Sequence, StepTrace, TreeVerdict, Verdict
from .greedy.async_copy import AsyncCopy
from .greedy.summary import Summary, summarise
from .method import Method
from .request import Request
from .sampler import logprobs_of
from .tracing import trace_step

DAMAGED = "the model produced NaN or allowed no token at all; its weights or the grammar may be damaged"


@dataclass(slots=True)
class MethodGroup:
    """Filled in from left to right by `Engine.step`."""

    method: Method
    requests: list[Request]
    drafting: bool  # False: no room or no drafter, so the round is plain decoding
    resting: bool = False  # its drafter need not even hear of this round
    idle: bool = False  # nothing is drafted, and most likely nothing in the next round
    early: bool = False  # its pass had begun before this step
    drafts: DraftBatch = field(init=False)
    out: Output = field(init=False)
    rows: LogitDistributions = field(init=False)
    verdict: Verdict = field(init=False)
    summary: AsyncCopy | None = field(init=False, default=None)  # what the host must know, once it is on its way
    summaries: list[Summary] = field(init=False)  # the same on the host
    moved: bool = False  # whether the K/V of accepted paths lies at the front of the scratch rows already

    @property
    def sequences(self) -> list[Sequence]:
        return [request.sequence for request in self.requests]

    @property
    def taps(self) -> frozenset[int]:
        """Target states that somebody looks at in this round."""
        return self.method.rule_taps if self.resting else self.method.taps

    @property
    def decided(self) -> list[TreeVerdict]:
        """The verdict on the host."""
        return [summary.verdict for summary in self.summaries]

    @property
    def scattered(self) -> bool:
        """Whether accepted nodes lie elsewhere than at the front of the scratch rows, one after another."""
        tree = self.drafts.branching > 1 and not self.moved
        return tree and any(verdict.path != list(range(len(verdict.path))) for verdict in self.decided)

    def read_back(self) -> None:
        """The one small copy to the host."""
        if self.summary is None:
            self.summary = AsyncCopy(summarise(self.drafts, self.verdict, self.rows.bad))
        levels = self.verdict.path.shape[1]
        self.summaries = [Summary.read(line, levels) for line in self.summary.read()]

    def advance(self, b: int, max_length: int) -> Event:
        """Hand one request its tokens."""
        request, summary = self.requests[b], self.summaries[b]
        tokens, verdict = summary.tokens, summary.verdict
        if summary.damaged:
            request.error, request.finish_reason = DAMAGED, "error"
            return Event(request.id, [], [], None, "error")
        taken = request.take(tokens, verdict, max_length)
        request.count(summary.depth, min(len(verdict.path), taken), summary.drafted, taken)
        tokens, reasons = tokens[:taken], verdict.reasons[:taken]
        logprobs = None if request.sequence.params.logprobs is None else self._logprobs(b, tokens)
        trace = self._trace(b, tokens) if request.trace else None
        return Event(request.id, tokens, reasons, logprobs, request.finish_reason, trace)

    def _logprobs(self, b: int, tokens: list[int]) -> list[dict[int, float]]:
        request = self.requests[b]
        top = request.sequence.params.logprobs
        assert top is not None
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


def requests_of(groups: list[MethodGroup]) -> list[Request]:
    return [request for group in groups for request in group.requests]


def taps_of(requests: list[Request]) -> frozenset[int]:
    """Target states that some drafter or rule among the requests wants."""
    wanted: set[int] = set()
    for method in {id(r.method): r.method for r in requests}.values():
        wanted |= method.taps
    return frozenset(wanted)


def requests_by_drafter(requests: list[Request]) -> list[tuple[Drafter, list[int]]]:
    """Indices of the requests that share a drafter."""
    found: dict[int, tuple[Drafter, list[int]]] = {}
    for i, request in enumerate(requests):
        drafter = request.method.drafter
        if drafter is not None:
            found.setdefault(id(drafter), (drafter, []))[1].append(i)
    return list(found.values())


def groups_by_drafter(groups: list[MethodGroup]) -> list[tuple[Drafter, list[MethodGroup]]]:
    """Groups that share a drafter and draft this round."""
    found: dict[int, tuple[Drafter, list[MethodGroup]]] = {}
    for group in groups:
        if group.method.drafter is not None and group.drafting:
            found.setdefault(id(group.method.drafter), (group.method.drafter, []))[1].append(group)
    return list(found.values())
