"""Greedy multi-draft (Hu et al. 2025): the k - 1 most likely tokens and one draw, with the verifier optimal for them.

Top are the k - 1 tokens of largest q; the last candidate x is drawn from q' = q off Top, renormalised. Accept x with
min(1, p(x) / q'(x)); otherwise draw y from Nrm([p - q']+) and go on from it if it is a candidate. The acceptance
p(Top) + sum min(p, q') is the optimum for such drafts. Siblings must reach the verifier whole: a group that lost its
last member looks like one with a smaller Top.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ....types import Kind
from ...distributions.tensors import DenseDistribution, pick_rows
from ...rng.keyed import Purpose
from ..base import Rule, pairs
from ..residual_hit import emit_or_hit, emit_or_hit_batch
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk
from .rejection import ONE_DRAW, emit, emit_batch, flip_ratio, ratio, residual, walk_with_batched_rng


def solve_top_then_sampled(node: Node) -> Step:
    if not node.children:
        return emit(node, node.p)
    q, last = node.draft().copy(), node.children[-1]
    q[[child.token for child in node.children[:-1]]] = 0.0
    if q[last.token] <= 0:  # nothing was left to draw from: all candidates are chosen ones
        return emit_or_hit(node, node.p)
    q = q / q.sum()
    if node.rng.flip(ratio(node.p[last.token], q[last.token]), Purpose.ACCEPT, last.node):
        return Step(last, last.token)
    return emit_or_hit(node, residual(node.p, q))


def solve_top_then_sampled_batch(node: NodeBatch) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    count = (node.child >= 0).sum(dim=1, keepdim=True)
    at = (count - 1).clamp(min=0)
    last, child = node.token.gather(1, at).clamp(min=0), node.child.gather(1, at)[:, 0]
    column = torch.arange(node.child.shape[1], device=at.device)[None, :]
    q = _off_top(node.draft_distribution().dense(), torch.where(column < at, node.token, -1))
    own = q.gather(1, last)
    # q' = scale * q; 0 where nothing was left to draw from: all candidates are chosen ones then
    scale = ((count > 0) & (own > 0)) / q.sum(dim=1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
    passed = flip_ratio(node, node.p.prob(last[:, 0]), (scale * own)[:, 0], child, 0)
    slot = torch.where(passed, at[:, 0], -1)
    if node.settled(slot):
        return StepBatch(slot, slot)
    p = node.p.dense()
    rest = torch.relu_(torch.addcmul(p, scale.to(p.dtype), q.to(p.dtype), value=-1))
    rest = pick_rows(rest.sum(dim=1, keepdim=True) > 0, rest, p)  # p == q' up to rounding
    return emit_or_hit_batch(node, DenseDistribution(rest), slot)


def _off_top(q: Tensor, top: Tensor) -> Tensor:
    """q [B, V] without the tokens of `top` [B, C] (-1 = none), not renormalised; in place."""
    token = top.clamp(min=0)
    return q.scatter_add_(1, token, -q.gather(1, token) * (top >= 0))  # absent candidates take nothing off token 0


TOP_THEN_SAMPLED = Rule(
    name="top-then-sampled",
    summary="the optimal test for the k - 1 most likely tokens and one draw (greedy multi-draft)",
    # Given its earlier siblings, the last of several draws without replacement is such a draw too.
    exact_for=pairs((Kind.TOP_THEN_SAMPLED, Kind.SAMPLED_WITHOUT_REPLACEMENT)) | ONE_DRAW,
    verify=partial(walk, solve_top_then_sampled),
    verify_batch=partial(walk_with_batched_rng, solve_top_then_sampled_batch),
)
