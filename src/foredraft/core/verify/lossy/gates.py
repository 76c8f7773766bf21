"""Divergence gates: where the distributions of target and draft nearly agree, any drafted token passes. Lossy.

kl-gate (JuDi): the standard test, or KL(p || q) <= threshold. fuzzy (Holsman et al. 2025): accept iff Div(p, q) is at
most the threshold, otherwise the target draws for itself (or the standard test decides). All children of a node share
its gate; on a tree the most likely under p is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ....errors import UsageError
from ...spec import label
from ..base import Array, BatchCase, Rule, TreeCase
from ..exact.matching import solve_match, solve_match_batch
from ..second_chance import (
    NO,
    SecondChance,
    solve_standard,
    solve_standard_batch,
    temperature_one_row,
    temperature_one_row_batch,
    with_second_chance,
)
from ..tree_walk import BatchSolver, Node, NodeBatch, Solver


def kl(p: Array, q: Array) -> float:
    """KL(p || q) in nats; infinite where p has a token that q has not."""
    here = p > 0
    if (q[here] == 0).any():
        return float("inf")
    return float((p[here] * np.log(p[here] / q[here])).sum())


def js(p: Array, q: Array) -> float:
    """Jensen-Shannon divergence in nats, at most log 2."""
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def kl_batch(p: Tensor, q: Tensor) -> Tensor:
    """[B] KL; what p has and q has not, p - p sign(q), makes it infinite."""
    missing = torch.addcmul(p, p, q.sign(), value=-1).sum(dim=1)
    return (_log(p).sub_(_log(q))).mul_(p).sum(dim=1).masked_fill_(missing > 0, torch.inf)


def js_batch(p: Tensor, q: Tensor) -> Tensor:
    """[B] (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2, of which nothing is missing."""
    middle = _log((p + q).mul_(0.5))
    both = (_log(p).sub_(middle)).mul_(p).addcmul_(q, _log(q).sub_(middle))
    return both.sum(dim=1) / 2


def _log(p: Tensor) -> Tensor:
    """log p; zeros, which weigh nothing, count as the smallest number."""
    return p.clamp(min=torch.finfo(p.dtype).tiny).log_()


Divergence = tuple[Callable[[Array, Array], float], Callable[[Tensor, Tensor], Tensor]]
DIVERGENCES: dict[str, Divergence] = {"kl": (kl, kl_batch), "js": (js, js_batch)}
FALLBACKS: dict[str, tuple[Solver, BatchSolver]] = {
    "target": (solve_match, solve_match_batch),
    "standard": (solve_standard, solve_standard_batch),
}


def _gate(divergence: Divergence, threshold: float) -> SecondChance:
    one, many = divergence

    def score(case: TreeCase, node: Node) -> Sequence[float]:
        p = temperature_one_row(case, node.index + 1)
        if not one(p, node.draft()) <= threshold:
            return [NO] * len(node.children)
        return [float(p[child.token]) for child in node.children]

    def score_batch(case: BatchCase, node: NodeBatch) -> Tensor:
        p = temperature_one_row_batch(case, node.index + 1).dense()
        passes = many(p, node.draft_distribution().dense().to(p.dtype)) <= threshold
        return torch.where(passes[:, None], p.gather(1, node.token.clamp(min=0)).double(), NO)

    return SecondChance(score, score_batch)


def kl_gate(threshold: float = 0.5) -> Rule:
    """Standard test, or KL(p || q) <= threshold in nats; a threshold below 0 is the standard rule."""
    name = label("kl-gate", threshold=(threshold, 0.5))
    summary = "the standard test, or the whole distributions are within a KL threshold (lossy)"
    return with_second_chance(
        name, summary, _gate(DIVERGENCES["kl"], threshold), needs_temperature_one=True, needs_distributions=True
    )


def fuzzy(threshold: float = 0.1, divergence: str = "js", otherwise: str = "target") -> Rule:
    """Accept iff the divergence ("js", "kl") is within the threshold; otherwise "target" draws or "standard" tests."""
    if divergence not in DIVERGENCES or otherwise not in FALLBACKS:
        raise UsageError("fuzzy: divergence is 'js' or 'kl', otherwise is 'target' or 'standard'")
    name = label("fuzzy", threshold=(threshold, 0.1), divergence=(divergence, "js"), otherwise=(otherwise, "target"))
    summary = "drafts pass wherever target and draft distributions are close (lossy)"
    gate = _gate(DIVERGENCES[divergence], threshold)
    return with_second_chance(
        name, summary, gate, FALLBACKS[otherwise], needs_temperature_one=True, needs_distributions=True
    )
