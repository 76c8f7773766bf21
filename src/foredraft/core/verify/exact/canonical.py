"""Canonical decomposition (Khisti et al. 2025): first select one of the drafts, then test that one alone.

Two independent draws X1 ~ q1 and X2 ~ q2 become one token Y ~ q_I, kept so that sum min(p, q_I) is large; Y is tested
against q_I like a single draft, and the residual is Nrm([p - q_I]+). More draws are folded in one after another, as a
tournament: Y ~ q_I meets X3 ~ q, and so on. Which draw is kept changes how much is accepted, never the distribution, as
long as q_I is exactly the distribution of Y.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....errors import UsageError
from ....types import Kind
from ...distributions.tensors import DenseDistribution
from ...rng.keyed import Purpose
from ...spec import label
from ..base import Array, Rule, pairs
from ..residual_hit import emit_or_hit, emit_or_hit_batch
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk
from .rejection import (
    ONE_DRAW,
    draw_order,
    emit,
    emit_batch,
    flip_ratio,
    ratio,
    residual,
    shuffled,
    walk_with_batched_rng,
)
from .transport import SMALL, transport


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of two different draws to keep: the one of smaller rank, but by weight among the first few ranks."""

    rank: NDArray[np.int64]  # [V]
    weight: Array  # [s, s] probability of keeping X1 when its rank is the row and that of X2 the column
    distribution: Array  # [V] q_I

    def keep_first(self, first: int, second: int) -> float:
        """Probability of keeping X1 = first against X2 = second."""
        a, b = self.rank[first], self.rank[second]
        if max(a, b) < len(self.weight):
            return float(self.weight[a, b])
        return float(a <= b)


def select(p: Array, q1: Array, q2: Array, free: int = 5, alphabet: int = 40, ranks: str = "difference") -> Selection:
    """The selection of the paper's truncated linear program, solved as a flow.

    Tokens rank by p - q1 q2, the `alphabet` most likely of the target first, or (ranks "ratio") by p / sqrt(q1 q2), the
    order in which the bound fills them. The pairs among the first `free` ranks are split freely; every other pair keeps
    the smaller rank.
    """
    rank, order = _ranks(p, q1 * q2, alphabet, ranks)
    a, b = q1[order], q2[order]
    free = min(free, int(np.count_nonzero((a > 0) | (b > 0))))
    after_a, after_b = (np.append(np.cumsum(x[:0:-1])[::-1], 0.0) for x in (a, b))
    distribution = a * b + a * after_b + b * after_a  # what the smaller rank alone would give
    distribution[:free] = a[:free] * (b[:free] + b[free:].sum()) + b[:free] * a[free:].sum()
    weight = _split(np.clip(p[order[:free]] - distribution[:free], 0.0, None), a[:free], b[:free])
    first = np.outer(a[:free], b[:free])
    np.fill_diagonal(first, 0.0)
    distribution[:free] += (first * weight).sum(axis=1) + (first * (1.0 - weight)).sum(axis=0)
    out = np.empty_like(distribution)
    out[order] = distribution
    return Selection(rank, weight, out)


def _ranks(p: Array, both: Array, alphabet: int, ranks: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    score = p - both
    if ranks == "ratio":  # a token that is never drawn may stand anywhere
        score = np.divide(p, np.sqrt(both), out=np.zeros_like(p), where=both > 0)
    elif alphabet < p.size:
        front = np.argpartition(-p, alphabet)[:alphabet]
        score[front] += 2.0  # scores lie in [-1, 1]
    order = np.argsort(-score.astype(np.float32))
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return rank, order


def _split(room: Array, a: Array, b: Array) -> Array:
    """Weights that send the mass of each pair of the first ranks to where p has room; what fits nowhere goes first."""
    weight = np.triu(np.ones((a.size, a.size)))
    pairs_of = {(i, j): float(a[i] * b[j] + a[j] * b[i]) for i in range(a.size) for j in range(i + 1, a.size)}
    plan = transport(room, {pair: mass for pair, mass in pairs_of.items() if mass > 0})
    for (i, j), flow in plan.flow.items():
        weight[i, j] = np.clip(1.0 - flow[1] / pairs_of[i, j], 0.0, 1.0)
        weight[j, i] = 1.0 - weight[i, j]
    return weight


def _select(p: Array, q1: Array, q2: Array, free: int, alphabet: int, ranks: str) -> Selection:
    """`select`, remembered for distributions of few tokens: enumeration asks for the same ones again and again."""
    if p.size > SMALL:
        return select(p, q1, q2, free, alphabet, ranks)
    return _remembered(p.tobytes(), q1.tobytes(), q2.tobytes(), free, alphabet, ranks)


@lru_cache(maxsize=256)
def _remembered(p: bytes, q1: bytes, q2: bytes, free: int, alphabet: int, ranks: str) -> Selection:
    return select(np.frombuffer(p), np.frombuffer(q1), np.frombuffer(q2), free, alphabet, ranks)


def solve_canonical(node: Node, free: int, alphabet: int, ranks: str) -> Step:
    if not node.children:
        return emit(node, node.p)
    p, q = node.p, node.draft()
    kept, distribution = None, q
    for attempt, child in shuffled(node):
        if kept is None:
            kept = child
            continue
        chosen = _select(p, distribution, q, free, alphabet, ranks)
        distribution = chosen.distribution
        if child is not kept:
            stay = chosen.keep_first(kept.token, child.token)
            kept = kept if node.rng.flip(stay, Purpose.SELECT, node.index, attempt) else child
    assert kept is not None
    if node.rng.flip(ratio(p[kept.token], distribution[kept.token]), Purpose.ACCEPT, node.index):
        return Step(kept, kept.token)
    return emit_or_hit(node, residual(p, distribution))


def solve_canonical_batch(node: NodeBatch, free: int, alphabet: int, ranks: str) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    p, q = node.p.dense().double(), node.draft_distribution().dense().double()
    distribution, kept = q.clone(), torch.zeros_like(node.index)
    for attempt, k, present in draw_order(node):
        rival = k[:, 0]
        if attempt == 0:
            kept = rival
            continue
        stay = torch.ones_like(kept, dtype=torch.float64)
        for b in torch.nonzero(present)[:, 0].tolist():  # flows are solved one by one, on the host
            row, first, second = (each[b].cpu().numpy() for each in (p, distribution, q))
            chosen = _select(row, first, second, free, alphabet, ranks)
            distribution[b] = torch.from_numpy(chosen.distribution).to(distribution.device)
            if kept[b] != rival[b]:
                stay[b] = chosen.keep_first(int(node.token[b, kept[b]]), int(node.token[b, rival[b]]))
        kept = torch.where(node.rng.flip(stay, Purpose.SELECT, node.index, attempt), kept, rival)
    return _test_kept(node, p, distribution, kept)


def _test_kept(node: NodeBatch, p: Tensor, distribution: Tensor, kept: Tensor) -> StepBatch:
    """The single-draft test of the kept draw against its own distribution."""
    token, drawn = node.token.gather(1, kept[:, None]).clamp(min=0), node.child[:, 0] >= 0
    own = torch.where(drawn, distribution.gather(1, token)[:, 0], 0.0)
    slot = torch.where(flip_ratio(node, p.gather(1, token)[:, 0], own, node.index, 0), kept, -1)
    rest = torch.relu(p - torch.where(drawn[:, None], distribution, 0.0))
    rest = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, p)
    return emit_or_hit_batch(node, DenseDistribution(rest), slot)


def canonical(free: int = 5, alphabet: int = 40, ranks: str = "difference") -> Rule:
    """The canonical rule. free: tokens among which pairs are split by the flow; alphabet: where they are taken from;
    ranks: "difference" or "ratio", see `select`.
    """
    if ranks not in ("difference", "ratio"):
        raise UsageError(f"canonical: ranks is 'difference' or 'ratio', not {ranks!r}")
    if not 0 <= free <= 15 or alphabet < 1:
        raise UsageError("canonical: free lies in 0..15 and alphabet is at least 1")
    return Rule(
        name=label("canonical", free=(free, 5), alphabet=(alphabet, 40), ranks=(ranks, "difference")),
        summary="select one of several independent draws, then test it alone; optimal for two (weighted importance)",
        exact_for=pairs((Kind.SAMPLED_IID,)) | ONE_DRAW,
        verify=partial(walk, partial(solve_canonical, free=free, alphabet=alphabet, ranks=ranks)),
        verify_batch=partial(
            walk_with_batched_rng, partial(solve_canonical_batch, free=free, alphabet=alphabet, ranks=ranks)
        ),
    )
