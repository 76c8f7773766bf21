"""Deterministic tests, and the longest drafted path that passes them all. Lossy.

typical acceptance (Medusa, Cai et al. 2024): p(x) > min(eps, delta exp(-H(p))). top-k acceptance: x is among the k
most likely tokens of p. Drafts are accepted without random numbers; the token after the path is drawn from p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ....errors import UsageError
from ....types import Reason, TreeVerdict, Verdict
from ...host_look import may_look
from ...rng.batched import batched_rng
from ...spec import label
from ..base import Array, BatchCase, Rule, TreeCase
from ..longest_path import deepest, finish, finish_batch
from ..second_chance import temperature_one_row, temperature_one_row_batch


@dataclass(frozen=True, slots=True)
class Threshold:
    """A token passes iff p(token) > threshold(p)."""

    one: Callable[[Array], float]
    many: Callable[[Tensor], Tensor]  # [B, V] -> [B]


def verify_longest_path(threshold: Threshold, case: TreeCase) -> TreeVerdict:
    tree, best = case.tree, -1
    depth: dict[int, int] = {-1: 0}  # of nodes whose whole path passes
    for parent in range(-1, len(tree.token)):
        children = tree.children(parent) if parent in depth else []
        p = temperature_one_row(case, parent + 1) if children else np.zeros(0)
        for node in children:
            if p[tree.token[node]] > threshold.one(p):
                depth[node] = depth[parent] + 1
                best = node if depth[node] > depth[best] else best
    return finish(case, best, [Reason.RELAXED] * depth[best], tested=False)


def verify_longest_path_batch(threshold: Threshold, case: BatchCase) -> Verdict:
    """Rows in order; the host skips rows that no passing path leads to, and stops at the bottom of the tree."""
    case = replace(case, rng=batched_rng(case.rng, case.drafts.width))
    drafts = case.drafts
    table, who = drafts.child_table(), torch.arange(drafts.batch, device=drafts.token.device)
    # One spare column takes what absent children would write.
    alive = torch.zeros((drafts.batch, drafts.width + 2), dtype=torch.bool, device=drafts.token.device)
    alive[:, 0] = True
    bottom = (drafts.depth * drafts.used()).amax(dim=1) if drafts.width else torch.zeros_like(who)
    done = bottom == 0
    for row in range(drafts.width + 1 if drafts.width else 0):  # without nodes there is nothing to gather
        child = table[:, row]
        live = alive[:, row] & (child >= 0).any(dim=1) & ~done
        if may_look(live) and not bool(live.any()):
            if bool(done.all()):
                break
            continue
        p = temperature_one_row_batch(case, torch.full_like(who, row)).dense()
        token = drafts.token.gather(1, child.clamp(min=0))
        passes = (p.gather(1, token) > threshold.many(p)[:, None]) & (child >= 0) & live[:, None]
        alive.scatter_(1, torch.where(child >= 0, child + 1, drafts.width + 1), passes)
        depth = drafts.depth.gather(1, child.clamp(min=0))
        done = done | (passes & (depth == bottom[:, None])).any(dim=1)
    reason = torch.full((drafts.batch, drafts.levels), int(Reason.RELAXED), device=drafts.token.device)
    return finish_batch(case, deepest(case, alive[:, :-1]), reason, tested=False)


def _rule(name: str, summary: str, threshold: Threshold) -> Rule:
    return Rule(
        name=name,
        summary=summary,
        exact_for=frozenset(),
        verify=lambda case: verify_longest_path(threshold, case),
        verify_batch=lambda case: verify_longest_path_batch(threshold, case),
        lossy=True,
        needs_temperature_one=True,
    )


def typical(eps: float = 0.09, delta: float = 0.3) -> Rule:
    """eps: a probability that always suffices; delta: share of exp(-entropy) that does where the target is unsure."""
    if not (0 <= eps <= 1 and delta >= 0):
        raise UsageError("typical: eps lies in [0, 1] and delta is 0 or positive")

    def threshold(p: Array) -> float:
        entropy = -float((p[p > 0] * np.log(p[p > 0])).sum())
        return min(eps, delta * float(np.exp(-entropy)))

    def threshold_batch(p: Tensor) -> Tensor:
        entropy = -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(dim=1)
        return (delta * torch.exp(-entropy)).clamp(max=eps)

    name = label("typical", eps=(eps, 0.09), delta=(delta, 0.3))
    summary = "drafts pass that are not unlikely given the target's entropy (Medusa; lossy)"
    return _rule(name, summary, Threshold(threshold, threshold_batch))


def top_k(k: int = 3) -> Rule:
    """k: how many of the target's top tokens pass; ties do not pass."""
    if k < 1:
        raise UsageError("top-k: k is at least 1")

    def threshold(p: Array) -> float:
        return float(np.partition(p, -k - 1)[-k - 1]) if k < p.size else 0.0

    def threshold_batch(p: Tensor) -> Tensor:
        return p.topk(k + 1, dim=1).values[:, -1] if k < p.shape[1] else torch.zeros_like(p[:, 0])

    summary = "drafts pass that are among the target's k most likely tokens (lossy)"
    return _rule(label("top-k", k=(k, 3)), summary, Threshold(threshold, threshold_batch))
