"""Candidates for the children of nodes: the most likely tokens, tokens that are drawn, or both.

Those drawn without replacement come in a row, before anybody has decided how many of them become nodes. That is as good
as drawing them one by one (DESIGN invariant 5) as long as the decision about a candidate looks at its `left`, which is
known before it is drawn, and never at its token or score: what is not taken has then not been looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.top_k_search import IMPOSSIBLE
from ..distributions.tensors import DenseDistribution
from ..rng.hashing import hashed_uniform
from ..rng.keyed import KeyedRng, Purpose, Rng
from ..shapes.step import Step

_ATTEMPTS = 1 << 16  # more draws than any node has, so that (node, attempt) makes one key
_LEAST = 1e-7  # mass that must be left for another draw; of less, rounding errors are too large a part

Draw = Callable[[int, Tensor], Tensor]  # attempt, [B, w] who wants a token -> [B, w] tokens, -1 where none is left


@dataclass(frozen=True, slots=True)
class Candidates:
    """k next tokens after each of w nodes of every sequence, the first to be tried first. All [B, w, k]."""

    token: Tensor  # int64 target ids
    score: Tensor  # log q(token); -inf = no such candidate
    left: Tensor  # mass of q without the earlier candidates: the chance that a verifier looks at this one, if p were q


def top_candidates(step: Step, most: int) -> Candidates:
    """The `most` most likely tokens after every node; probabilities are those of temperature 1."""
    score, token = step.top(most)
    score = torch.nan_to_num(score, nan=IMPOSSIBLE)  # a broken drafter guesses too
    lacking = (0, most - token.shape[2])  # a vocabulary may be smaller
    token, score = F.pad(token, lacking), F.pad(score, lacking, value=-torch.inf)
    gone = score.exp().cumsum(dim=2)
    return Candidates(token, score, (1 - F.pad(gone[:, :, :-1], (1, 0))).clamp(min=0))


def drawn_candidates(
    step: Step, most: int, rng: Rng, node: Tensor, value: Tensor | None = None, floor: Tensor | float = 0.0
) -> Candidates:
    """Up to `most` tokens drawn without replacement after every node. node [B, w] keys the rng, -1 = root.

    With value [B, w] the draws after a node end before value * left falls below the floor (a number, or [B, 1]).
    """
    probs = step.dense()
    key = (node[:, :, None] + 1) * _ATTEMPTS + torch.arange(most, device=node.device)
    draw: Draw
    if isinstance(rng, KeyedRng):
        draw = _InverseCdf(probs, rng, key).draw
    else:
        draw = partial(_one_by_one, probs.clone(), rng, key)
    left = torch.ones_like(probs[:, :, 0])
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for attempt in range(most):
        want = torch.ones_like(left, dtype=torch.bool) if value is None else value * left >= floor
        if attempt and value is not None and not bool(want.any()):  # the host looks: that costs less than a draw
            break
        token = draw(attempt, want)
        there, token = want & (token >= 0), token.clamp(min=0)
        prob = probs.gather(2, token[:, :, None])[:, :, 0] * there
        found.append((token, prob, left))
        left = (left - prob).clamp(min=0)
    token, prob, left = (torch.stack(column, dim=2) for column in zip(*found, strict=True))
    return Candidates(step.target_ids(token), prob.log(), left)


def independent_draws(probs: Tensor, parent: Tensor, there: Tensor, rng: Rng, key: Tensor) -> Tensor:
    """[B, n] draws from the distributions probs [B, w, V] in columns parent [B, n], each by itself.

    key [B, n] keys the rng. Where `there` [B, n] is False nothing is drawn, and any token comes back.
    """
    if isinstance(rng, KeyedRng):
        ends = probs.cumsum(dim=2, dtype=torch.float64)
        uniform = hashed_uniform(rng.seed[:, None], rng.round[:, None], key, int(Purpose.DRAFT), 0)
        point = uniform[:, None, :] * ends[:, :, -1:]  # of every draw in every column; its own is looked at
        token = torch.searchsorted(ends, point, right=True).clamp(max=probs.shape[2] - 1)
        return token.gather(1, parent[:, None, :])[:, 0]
    tokens, who = torch.zeros_like(parent), torch.arange(len(parent), device=parent.device)
    for i in range(parent.shape[1]):
        if bool(there[:, i].any()):
            tokens[:, i] = rng.draw(DenseDistribution(probs[who, parent[:, i]]), Purpose.DRAFT, key[:, i])
    return tokens


def top_then_drawn(step: Step, count: Tensor, rng: Rng, node: Tensor) -> Candidates:
    """The count - 1 most likely tokens after every node, then one drawn from the rest of q (Hu et al. 2025).

    count [B, w] may differ from node to node; node [B, w] keys the rng. A token without mass is no candidate. Where
    the top tokens hold all of q nothing is drawn: the last of them is what a draw after the others would surely be.
    """
    probs = step.dense()
    most = min(int(count.max()), probs.shape[2])
    rank, last = torch.arange(most, device=count.device), count.clamp(max=most)[:, :, None] - 1
    top = probs.topk(most, dim=2).indices
    rest = probs.scatter(2, top, probs.gather(2, top) * (rank >= last))
    some = rest.sum(dim=2) > 0
    columns = torch.arange(node.shape[1], device=node.device).expand_as(node)
    drawn = independent_draws(rest, columns, some & (count > 0), rng, (node + 1) * _ATTEMPTS)
    token = torch.where((rank == last) & some[:, :, None], drawn[:, :, None], top)
    prob = probs.gather(2, token) * (rank <= last)
    lacking = (0, int(count.max()) - most)  # a vocabulary may be smaller
    token, prob = F.pad(step.target_ids(token), lacking), F.pad(prob, lacking)
    return Candidates(token, prob.log(), 1 - (prob.cumsum(dim=2) - prob))


class _InverseCdf:
    """Inverse CDFs with gaps: the intervals of drawn tokens are skipped, so that distributions are not renormalised."""

    def __init__(self, probs: Tensor, rng: KeyedRng, key: Tensor) -> None:
        self.ends = probs.cumsum(dim=2, dtype=torch.float64)  # [B, w, V]
        self.uniform = hashed_uniform(rng.seed[:, None, None], rng.round[:, None, None], key, int(Purpose.DRAFT), 0)
        self.begin = self.mass = self.ends[:, :, :0]  # of the pieces drawn so far

    def draw(self, attempt: int, want: Tensor) -> Tensor:
        """Inverse CDF on what is left: a uniform point of a line without the drawn pieces."""
        begin, order = self.begin.sort(dim=2)
        mass = self.mass.gather(2, order)
        left = self.ends[:, :, -1:] - mass.sum(dim=2, keepdim=True)
        point = self.uniform[:, :, attempt, None] * left
        closed_up = begin - (mass.cumsum(dim=2) - mass)  # where each gap lies once those before it are closed
        point = point + (mass * (point >= closed_up)).sum(dim=2, keepdim=True)
        token = torch.searchsorted(self.ends, point, right=True).clamp(max=self.ends.shape[2] - 1)
        begin = torch.where(token > 0, self.ends.gather(2, (token - 1).clamp(min=0)), 0.0)
        none = (left <= _LEAST) | (begin == self.begin).any(dim=2, keepdim=True)  # rounding may hit the edge of a gap
        self.mass = torch.cat((self.mass, (self.ends.gather(2, token) - begin) * ~none), dim=2)
        self.begin = torch.cat((self.begin, begin), dim=2)
        return torch.where(none, -1, token)[:, :, 0]


def _one_by_one(left: Tensor, rng: Rng, key: Tensor, attempt: int, want: Tensor) -> Tensor:
    """The reference of `_InverseCdf.draw`, for any rng: node by node, drawn tokens taken out of the distribution."""
    tokens = torch.full_like(key[:, :, 0], -1)
    for column in range(left.shape[1]):
        distribution = left[:, column]
        there = want[:, column] & (distribution.sum(dim=1, dtype=torch.float64) > _LEAST)
        if bool(there.any()):
            token = rng.draw(DenseDistribution(distribution), Purpose.DRAFT, key[:, column, attempt])
            tokens[:, column] = torch.where(there, token, -1)
            distribution.scatter_(1, token[:, None], 0.0)  # whoever did not want this token never wants another
    return tokens
