"""k-SEQ (SpecTr, Sun et al. 2023): K independent draws, each tested against the same lowered bar.

With b(rho) = sum_v min(q, p / rho) and A = 1 - (1 - b)^K, a draw x passes with probability min(1, p(x) / (rho q(x)));
the first that passes is taken, otherwise the token comes from Nrm([p - min(q, p / rho) A / b]+). That is exact as long
as A <= rho b; the smallest such rho in [1, K], rho*, accepts most: at least (1 - 1/e) of the optimum. On a tree of
independent draft sequences the survivors of a node are its children with their multiplicities, so the sequence level
of the paper is the walk.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...types import Kind, Topology
from ..dice import Purpose
from ..laws import DenseLaw
from .base import Array, Rule, pairs
from .hit import emit_or_hit, emit_or_hit_batch
from .label import label
from .rejection import draw_order, emit, emit_batch, flip_ratio, ratio, shuffled, walk_ahead
from .walk import Node, NodeBatch, Step, StepBatch, walk

_NEWTON = 12  # safeguarded Newton steps; five or six suffice


def overlap(p: Array, q: Array, rho: float) -> float:
    """b(rho)."""
    return float(np.minimum(q, p / rho).sum())


def best_rho(p: Array, q: Array, draws: int) -> float:
    """rho*: the root of 1 - (1 - b)^K = rho b in [1, K], by bisection. The upper end is kept: it is the valid one."""
    low, high = 1.0, float(draws)
    for _ in range(60):
        middle = (low + high) / 2
        b = overlap(p, q, middle)
        low, high = (low, middle) if 1 - (1 - b) ** draws <= middle * b else (middle, high)
    return high


def solve_kseq(node: Node, widest: bool = False) -> Step:
    if not node.children:
        return emit(node, node.p)
    p, q, draws = node.p, node.draft(), sum(child.multiplicity for child in node.children)
    rho = float(draws) if widest else best_rho(p, q, draws)
    for turn, child in shuffled(node):
        if node.roll.flip(ratio(p[child.token], rho * q[child.token]), Purpose.ACCEPT, node.index, turn):
            return Step(child, child.token)
    b = overlap(p, q, rho)
    taken = (1 - (1 - b) ** draws) / b if b > 0 else 0.0
    rest = np.clip(p - np.minimum(q, p / rho) * taken, 0.0, None)
    return emit_or_hit(node, rest / rest.sum() if rest.sum() > 0 else p)


def solve_kseq_batch(node: NodeBatch, widest: bool = False) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    p, draws = node.p.dense(), node.multiplicity().sum(dim=1).clamp(min=1)
    q = node.draft_law().dense().to(p.dtype)
    rho = draws.to(torch.float64) if widest else _best_rho_batch(p, q, draws)
    slot = torch.full_like(node.index, -1)
    for turn, k, present in draw_order(node):
        token = node.token.gather(1, k).clamp(min=0)
        passed = flip_ratio(node, p.gather(1, token)[:, 0], rho * q.gather(1, token)[:, 0], node.index, turn)
        slot = torch.where((slot < 0) & present[:, 0] & passed, k[:, 0], slot)
        if node.settled(slot):
            return StepBatch(slot, slot)
    kept = torch.minimum(q, p / rho[:, None].to(p.dtype))
    b = kept.sum(dim=1).double()
    taken = torch.where(b > 0, (1 - (1 - b).clamp(min=0) ** draws) / b, 0.0)
    taken = torch.where(node.child[:, 0] >= 0, taken, 0.0)
    rest = (p - kept * taken[:, None].to(p.dtype)).clamp(min=0)
    law = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, p)
    return emit_or_hit_batch(node, DenseLaw(law), slot)


def _best_rho_batch(p: Tensor, q: Tensor, draws: Tensor) -> Tensor:
    """[B] float64 rho* by Newton's method, kept inside a shrinking bracket.

    With c(rho) = rho b = sum min(rho q, p), the function 1 - (1 - c / rho)^K - c falls strictly in rho.
    """
    low, high = torch.ones_like(draws, dtype=torch.float64), draws.to(torch.float64)
    rho = high.clone()
    for _ in range(_NEWTON):
        scaled = rho[:, None].to(p.dtype) * q
        c = torch.minimum(scaled, p).sum(dim=1).double()
        slope = (q * (scaled < p)).sum(dim=1).double()
        none = (1 - c / rho).clamp(min=0)
        gap = 1 - none**draws - c
        low, high = torch.where(gap > 0, rho, low), torch.where(gap > 0, high, rho)
        fall = draws * none ** (draws - 1) * (slope * rho - c) / rho**2 - slope
        step = torch.where(fall < 0, rho - gap / fall, rho)
        inside = (step > low) & (step < high)
        rho = torch.where(gap.abs() < 1e-14, rho, torch.where(inside, step, (low + high) / 2))
        if rho.device.type == "cpu" and bool((gap.abs() < 1e-7).all()) and p.dtype == torch.float32:
            break  # float32 sums say no more
    return rho


def k_seq(rho: str = "best") -> Rule:
    """The k-SEQ rule. rho: "best" finds rho* at every node; "K" takes the number of draws, always valid, no search."""
    if rho not in ("best", "K"):
        raise UsageError(f"k-seq: rho is 'best' or 'K', not {rho!r}")
    widest = rho == "K"
    return Rule(
        name=label("k-seq", rho=(rho, "best")),
        summary="independent draws, each tested against p / (rho q); a cheap rule near the optimum (SpecTr)",
        exact_for=pairs((Kind.SAMPLED_IID,)) | pairs((Kind.SAMPLED_WITHOUT_REPLACEMENT,), (Topology.CHAIN,)),
        verify=partial(walk, partial(solve_kseq, widest=widest)),
        verify_batch=partial(walk_ahead, partial(solve_kseq_batch, widest=widest)),
    )
