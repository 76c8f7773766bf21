"""Rules that sample exactly from a distribution between target and draft: lossy with respect to the target.

ensemble: v = w p + (1 - w) q. Accepts beta + (1 - w)(1 - beta) at a distortion of (1 - w) TV(p, q): no rule accepts
more at that distortion, so it is what other lossy rules have to beat. mentored (Tran-Thien 2023): the v that accepts
most under KL(p || v) <= D, which is q clipped to [b p, a p]. Tokens after the last drafted one come from p itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ....errors import UsageError
from ....types import Reason
from ...distributions.tensors import DenseDistribution, pick_rows
from ...spec import label
from ..base import Array, Rule
from ..exact.rejection import walk_with_batched_rng
from ..second_chance import solve_standard, solve_standard_batch
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk

_ROUNDS = 30  # of a search for clips; five are usual
Mixture = Callable[[Array, Array], Array]  # p [B, V], q [B, V] -> v, in float64


def solve_mixture(mixture: Mixture, node: Node) -> Step:
    if not node.children:
        return solve_standard(node)
    v = mixture(node.p[None], node.draft()[None])[0]
    step = solve_standard(replace(node, p=v))
    return step if step.child is None else replace(step, reason=Reason.RELAXED)


def solve_mixture_batch(mixture: Callable[[Tensor, Tensor], Tensor], node: NodeBatch) -> StepBatch:
    if node.childless():
        return solve_standard_batch(node)
    p = node.p.dense()
    drafted = (node.child >= 0).any(dim=1)
    v = pick_rows(drafted[:, None], mixture(p, node.draft_distribution().dense().to(p.dtype)), p)
    step = solve_standard_batch(replace(node, p=DenseDistribution(v)))
    return replace(step, reason=torch.full_like(step.slot, int(Reason.RELAXED)))


def ensemble(weight: float = 0.8) -> Rule:
    """weight: the target's share w of the mixture; 1 is the exact rule."""
    if not 0 <= weight <= 1:
        raise UsageError("ensemble: weight lies in [0, 1]")

    def mix(p: Array, q: Array) -> Array:
        return weight * p + (1 - weight) * q

    def mix_batch(p: Tensor, q: Tensor) -> Tensor:
        return torch.lerp(q, p, weight)

    return Rule(
        name=label("ensemble", weight=(weight, 0.8)),
        summary="samples exactly from a mixture of target and draft (lossy)",
        exact_for=frozenset(),
        verify=partial(walk, partial(solve_mixture, mix)),
        verify_batch=partial(walk_with_batched_rng, partial(solve_mixture_batch, mix_batch)),
        lossy=True,
        needs_distributions=True,
    )


def mentored(divergence: float = 0.1) -> Rule:
    """divergence: the bound D on KL(p || v) in nats; 0 is the exact rule."""
    if not divergence >= 0:
        raise UsageError("mentored: divergence is 0 or positive")
    clip = partial(mentor_distribution, bound=divergence)

    return Rule(
        name=label("mentored", divergence=(divergence, 0.1)),
        summary="accepts as much as a bound on KL(target || output) allows (lossy)",
        exact_for=frozenset(),
        verify=partial(walk, partial(solve_mixture, clip)),
        verify_batch=partial(
            walk_with_batched_rng, partial(solve_mixture_batch, partial(mentor_distribution_batch, bound=divergence))
        ),
        lossy=True,
        needs_distributions=True,
    )


def mentor_distribution(p: Array, q: Array, bound: float) -> Array:
    """argmax over v of sum min(v, q) subject to KL(p || v) <= bound: v = clip(q, b p, a p), row by row."""
    if bound == 0:
        return p.copy()
    return np.stack([_mentor_row(p_row, q_row, bound) for p_row, q_row in zip(p, q, strict=True)])


@dataclass(frozen=True, slots=True)
class _Clips:
    """Sums over the tokens of p > 0 sorted by r = q / p, so that any clip costs two look-ups."""

    r: Array
    p: Array  # running sums, a leading 0 each: of p
    q: Array  # of q
    plogr: Array  # of p log r
    need: Array  # r_k P_k - Q_k: what lifting every ratio below r_k up to r_k would add

    @classmethod
    def of(cls, p: Array, q: Array) -> _Clips:
        here = p > 0
        ratio = q[here] / p[here]
        order = np.argsort(ratio)
        r, p, q = ratio[order], p[here][order], q[here][order]
        sums = [np.append(0.0, np.cumsum(x)) for x in (p, q, p * np.log(np.maximum(r, 1e-300)))]
        return cls(r, sums[0], sums[1], sums[2], r * sums[0][:-1] - sums[1][:-1])

    def lower(self, a: Array) -> Array:
        """b such that clip(q, b p, a p) sums to 1; 0 where no lifting is needed."""
        high = np.searchsorted(self.r, a, side="right")
        missing = 1.0 - (self.q[high] + a * (self.p[-1] - self.p[high]))
        k = np.searchsorted(self.need, missing, side="left")
        below = np.maximum(self.p[k], 1e-300)
        return np.where((missing > 0) & (self.p[k] > 0), (missing + self.q[k]) / below, 0.0)

    def divergence(self, a: Array) -> Array:
        """KL(p || v) for the upper clip a."""
        b = self.lower(a)
        low, high = np.searchsorted(self.r, b, side="left"), np.searchsorted(self.r, a, side="right")
        low = np.minimum(low, high)
        lifted = self.p[low] * np.log(np.where(b > 0, b, 1.0))  # b = 0 lifts nothing
        return -(lifted + self.plogr[high] - self.plogr[low] + (self.p[-1] - self.p[high]) * np.log(a))


def _mentor_row(p: Array, q: Array, bound: float) -> Array:
    sums = _Clips.of(p, q)
    top = max(1.0, float(sums.r[-1]))
    low, high = np.float64(1.0), np.float64(top)
    if sums.divergence(np.array([top]))[0] <= bound:
        low = high
    for _ in range(60):
        middle = np.sqrt(low * high)
        inside = sums.divergence(np.array([middle]))[0] <= bound
        low, high = (middle, high) if inside else (low, middle)
    b = float(sums.lower(np.array([low]))[0])
    v = np.clip(q, b * p, low * p)
    return np.asarray(v / v.sum())


def mentor_distribution_batch(p: Tensor, q: Tensor, bound: float) -> Tensor:
    """`mentor_distribution` without a sort wherever a few passes over the row settle it."""
    if bound == 0:
        return p
    rows = [_mentor_fast(p_row, q_row, bound) for p_row, q_row in zip(p, q, strict=True)]
    for b, row in enumerate(rows):
        if row is None:
            v = _mentor_row(p[b].double().cpu().numpy(), q[b].double().cpu().numpy(), bound)
            rows[b] = torch.from_numpy(v).to(p)
    return torch.stack([row for row in rows if row is not None])


def _mentor_fast(p: Tensor, q: Tensor, bound: float) -> Tensor | None:
    """One row, with v = p clip(r, b, a) and r = q / p; None where the search for the clips does not settle."""
    tiny = torch.finfo(p.dtype).tiny
    r = q / p.clamp(min=tiny)  # p = 0 weighs nothing, whatever its ratio
    log_r = r.clamp(min=tiny).log_()
    lift = _lift(p, r)
    loss = -float(log_r.clamp(min=math.log(lift or tiny)).dot(p))
    if loss <= bound and not lift:  # a token that p has and q has not would make it infinite
        loss = math.inf if float(torch.addcmul(p, p, q.sign(), value=-1).sum()) > 0 else loss
    clips = (lift, None) if loss <= bound else _search(p, r, log_r, bound)
    if clips is None:
        return None
    v = r.clamp_(*clips).mul_(p)
    return v.div_(v.sum())


def _lift(p: Tensor, r: Tensor) -> float:
    """b with sum p max(r, b) = 1; 0 where q has no mass outside of p. Newton from above: convex, piecewise linear."""
    if float(p.dot(r)) > 1.0 - 1e-6:
        return 0.0
    b, before, mask = 1.0, -1.0, torch.empty_like(r)
    for _ in range(_ROUNDS):
        below = float(torch.lt(r, b, out=mask).dot(p))
        if below in (before, 0.0):  # the same tokens are lifted
            break
        b, before = b - (float(torch.clamp(r, min=b, out=mask).dot(p)) - 1.0) / below, below
    return max(b, 0.0)


def _search(p: Tensor, r: Tensor, log_r: Tensor, bound: float) -> tuple[float, float] | None:
    """(b, a) by active sets: those that fit if the tokens below b and above a stay the same, until they do.

    That is  L b + H a = 1 - sum p r  and  L log b + H log a = -bound - sum p log r,  the sums over the tokens inside,
    L and H the masses of p below and above.
    """
    low, high, before, mask = 0.5, 2.0, (-1.0, -1.0), torch.empty_like(r)
    for _ in range(_ROUNDS):
        below, above = float(torch.lt(r, low, out=mask).dot(p)), float(torch.gt(r, high, out=mask).dot(p))
        if (below, above) == before:
            return low, high
        log_low, log_high = math.log(low), math.log(high)
        inside = float(torch.clamp(r, low, high, out=mask).dot(p)) - below * low - above * high
        logs = float(torch.clamp(log_r, log_low, log_high, out=mask).dot(p)) - below * log_low - above * log_high
        found = _two_clips(below, above, 1.0 - inside, -bound - logs)
        before = (-1.0, -1.0) if found is None else (below, above)
        low, high = found or (math.sqrt(low), math.sqrt(high))  # too few clipped to stay within the bound: clip more
    return None


def _two_clips(below: float, above: float, total: float, logs: float) -> tuple[float, float] | None:
    """b <= a with below b + above a = total and below log b + above log a = logs; None if there are none.

    In x = log(a / b) the second equation, with b from the first, is concave and falls, so Newton's method goes past
    the solution at most once and comes back to it from above.
    """
    both = below + above
    if min(below, above, total) <= 0 or both * math.log(total / both) < logs:
        return None
    x = 1.0
    for _ in range(50):
        weight = below + above * math.exp(x)
        step = (both * math.log(total / weight) + above * x - logs) * weight / (above * below * math.expm1(x))
        x += step
        if not 0 < x < 500:
            return None
        if abs(step) < 1e-14 * x:
            break
    b = total / (below + above * math.exp(x))
    return b, b * math.exp(x)
