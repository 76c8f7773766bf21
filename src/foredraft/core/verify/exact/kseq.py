"""k-SEQ (SpecTr, Sun et al. 2023): K independent draws, each tested against the same lowered threshold.

With b(rho) = sum_v min(q, p / rho) and A = 1 - (1 - b)^K, a draw x passes with probability min(1, p(x) / (rho q(x)));
the first that passes is taken, otherwise the token comes from Nrm([p - min(q, p / rho) A / b]+). That is exact as long
as A <= rho b; the smallest such rho in [1, K], rho*, accepts most: at least (1 - 1/e) of the optimum. On a tree of
independent draft sequences the survivors of a node are its children with their multiplicities, so the sequence level
of the paper is the walk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ....errors import UsageError
from ....types import Kind
from ...distributions.tensors import DenseDistribution, pick_rows
from ...rng.keyed import Purpose
from ...spec import label
from ..base import Array, Rule, pairs
from ..residual_hit import emit_or_hit, emit_or_hit_batch
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk
from .rejection import ONE_DRAW, draw_order, emit, emit_batch, flip_ratio, ratio, shuffled, walk_with_batched_rng

Sums = Callable[[float], tuple[float, float]]  # rho -> sum [p - rho q]+, and q of the tokens where that is positive


def overlap(p: Array, q: Array, rho: float) -> float:
    """b(rho)."""
    return float(np.minimum(q, p / rho).sum())


def best_rho(p: Array, q: Array, draws: int) -> float:
    """rho*; 1 for one draw."""

    def sums(rho: float) -> tuple[float, float]:
        over = p - rho * q
        return float(over[over > 0].sum()), float(q[over > 0].sum())

    return _newton(sums, float(p.sum()), draws, tolerance=1e-15)


def _newton(sums: Sums, total: float, draws: int, tolerance: float) -> float:
    """rho* by Newton's method inside a shrinking bracket.

    With c(rho) = rho b = sum min(rho q, p) the gap 1 - (1 - c / rho)^K - c falls strictly from rho = 1 to rho = K.
    """
    low, rho, high = 1.0, 0.5 * (1.0 + draws), float(draws)
    for _ in range(60):
        over, slope = sums(rho)
        c = total - over
        none = max(0.0, 1.0 - c / rho)
        gap = 1.0 - none**draws - c
        if abs(gap) < tolerance:
            break
        low, high = (rho, high) if gap > 0 else (low, rho)
        fall = draws * none ** (draws - 1) * (slope * rho - c) / rho**2 - slope
        step = rho - gap / fall if fall < 0 else low
        rho = step if low < step < high else 0.5 * (low + high)
    return rho


def solve_kseq(node: Node, widest: bool = False) -> Step:
    if not node.children:
        return emit(node, node.p)
    p, q, draws = node.p, node.draft(), sum(child.multiplicity for child in node.children)
    rho = float(draws) if widest else best_rho(p, q, draws)
    for attempt, child in shuffled(node):
        if node.rng.flip(ratio(p[child.token], rho * q[child.token]), Purpose.ACCEPT, node.index, attempt):
            return Step(child, child.token)
    b = overlap(p, q, rho)
    taken = (1 - (1 - b) ** draws) / b if b > 0 else 0.0
    rest = np.clip(p - np.minimum(q, p / rho) * taken, 0.0, None)
    return emit_or_hit(node, rest / rest.sum() if rest.sum() > 0 else p)


def solve_kseq_batch(node: NodeBatch, widest: bool = False) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    p, draws = node.p.dense(), node.multiplicity().sum(dim=1).clamp(min=1)
    q = node.draft_distribution().dense().to(p.dtype)
    rho = draws.to(torch.float64) if widest else _best_rhos(p, q, draws)
    slot = torch.full_like(node.index, -1)
    for attempt, k, present in draw_order(node):
        token = node.token.gather(1, k).clamp(min=0)
        passed = flip_ratio(node, p.gather(1, token)[:, 0], rho * q.gather(1, token)[:, 0], node.index, attempt)
        slot = torch.where((slot < 0) & present[:, 0] & passed, k[:, 0], slot)
        if node.settled(slot):
            return StepBatch(slot, slot)
    kept = torch.minimum(q, p / rho[:, None].to(p.dtype))
    b = kept.sum(dim=1).double()
    taken = torch.where(b > 0, (1 - (1 - b).clamp(min=0) ** draws) / b, 0.0)
    taken = torch.where(node.child[:, 0] >= 0, taken, 0.0)
    rest = torch.relu_(torch.addcmul(p, kept, taken[:, None].to(p.dtype), value=-1))
    distribution = pick_rows(rest.sum(dim=1, keepdim=True) > 0, rest, p)
    return emit_or_hit_batch(node, DenseDistribution(distribution), slot)


def _best_rhos(p: Tensor, q: Tensor, draws: Tensor) -> Tensor:
    """[B] float64 rho*, one sequence after the other; float32 sums are good for seven digits."""
    tolerance = 1e-15 if p.dtype == torch.float64 else 1e-7
    total = p.sum(dim=1).tolist()
    found = [_newton(partial(_sums, p[b], q[b]), total[b], count, tolerance) for b, count in enumerate(draws.tolist())]
    return torch.tensor(found, dtype=torch.float64, device=p.device)


def _sums(p: Tensor, q: Tensor, rho: float) -> tuple[float, float]:
    """As in `best_rho`. Signs of floats instead of masks: a pass that makes or reads bools costs four others."""
    over = torch.sub(p, q, alpha=rho).relu_()
    total = float(over.sum())
    return total, float(over.sign_().dot(q))


def k_seq(rho: str = "best") -> Rule:
    """The k-SEQ rule. rho: "best" finds rho* at every node; "K" takes the number of draws, always valid, no search."""
    if rho not in ("best", "K"):
        raise UsageError(f"k-seq: rho is 'best' or 'K', not {rho!r}")
    widest = rho == "K"
    return Rule(
        name=label("k-seq", rho=(rho, "best")),
        summary="independent draws, each tested against p / (rho q); a cheap rule near the optimum (SpecTr)",
        exact_for=pairs((Kind.SAMPLED_IID,)) | ONE_DRAW,
        verify=partial(walk, partial(solve_kseq, widest=widest)),
        verify_batch=partial(walk_with_batched_rng, partial(solve_kseq_batch, widest=widest)),
    )
