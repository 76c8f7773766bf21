"""Sampled verdicts on the host: the native library draws the target's own token after each row of the accepted path.

Where these tokens decide (`sample-and-match`, plain decoding), nothing else of a distribution is needed, so none is
written out, and rows off the path are never looked at. Random numbers are those of `KeyedRng.draw_at`, so the tokens
are the rule's own, up to rounding in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core.distributions.sampling import COLDEST
from ...core.rng.hashing import key_of
from ...core.rng.keyed import Purpose
from ...core.trees.editing import part
from ...models import native
from ...runtime.native.native_top_k import searcher
from ..method_group import MethodGroup
from ..request import Request
from ..sampler import Sampler
from .device import Decision
from .host import decision_of, lines_of
from .sampled import MATCHING


@dataclass(slots=True)
class Drawn:
    """The tokens after one sequence's rows, each drawn when it is asked for."""

    code: native.Compiled
    request: Request
    logits: Callable[[int], Tensor]  # of a row, [V] float32
    depth: list[int]  # of its nodes
    damaged: list[int] = field(default_factory=list)  # rows that were no distribution

    def __getitem__(self, row: int, /) -> int:
        sequence = self.request.sequence
        place = len(sequence.tokens) + (self.depth[row - 1] if row else 0)
        logits = self.logits(row)
        key = key_of(sequence.seed, place, 0, int(Purpose.EMIT), 0)
        token = self.code.draw(logits, options_of(self.request, len(logits)), key)
        if token < 0:
            self.damaged.append(row)
        return max(token, 0)


def options_of(request: Request, vocab: int) -> native.Options:
    params = request.sequence.params
    temperature = max(params.temperature, COLDEST) if params.temperature else 0.0
    return native.Options(temperature, params.top_p, params.min_p, params.top_k if 0 < params.top_k < vocab else 0)


def draw_on_host(group: MethodGroup, sampler: Sampler) -> Decision | None:
    """The verdict of a group whose rule follows the target's own tokens; None: another form has to do it."""
    code = searcher(group.out.logits, 1) if group.method.rule is MATCHING else None
    if code is None:
        return None
    depths = group.drafts.depth.tolist()
    drawn = [Drawn(code, r, _rows(group, b, sampler), depths[b]) for b, r in enumerate(group.requests)]
    lines = lines_of(group.drafts, drawn)
    rows = range(group.out.index.shape[1])
    damaged = [[int(row in each.damaged) for row in rows] for each in drawn]
    return decision_of(group.drafts, lines, damaged)


def _rows(group: MethodGroup, b: int, sampler: Sampler) -> Callable[[int], Tensor]:
    """Logits by row: as they lie, or with what the request's penalties, biases and grammar make of them."""
    out, request = group.out, group.requests[b]
    if not request.altered:
        index = out.index[b].tolist()
        return lambda row: out.logits[index[row]]
    own = sampler.rows([request], part(group.drafts, [b]), out.part(b, b + 1))
    return lambda row: own.logits_at(torch.tensor([row]))[0]
