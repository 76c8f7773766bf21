"""Rules that aim at a law between target and draft, and reach that law exactly. Lossy against the target alone.

ensemble: v = w p + (1 - w) q. Accepts beta + (1 - w)(1 - beta) at a distortion of (1 - w) TV(p, q): no rule accepts
more at that distortion, so it is what other lossy rules have to beat. mentored (Tran-Thien 2023): the v that accepts
most under KL(p || v) <= D, which is q clipped to [b p, a p]. Tokens behind the last drafted one come from p itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...types import Reason
from ..laws import DenseLaw
from .base import Array, Rule
from .label import label
from .opinion import solve_standard, solve_standard_batch
from .rejection import walk_ahead
from .walk import Node, NodeBatch, Step, StepBatch, walk

Blend = Callable[[Array, Array], Array]  # p [B, V], q [B, V] -> v, in float64


def solve_blend(blend: Blend, node: Node) -> Step:
    if not node.children:
        return solve_standard(node)
    v = blend(node.p[None], node.draft()[None])[0]
    step = solve_standard(replace(node, p=v))
    return step if step.child is None else replace(step, reason=Reason.RELAXED)


def solve_blend_batch(blend: Callable[[Tensor, Tensor], Tensor], node: NodeBatch) -> StepBatch:
    if node.childless():
        return solve_standard_batch(node)
    p = node.p.dense()
    drafted = (node.child >= 0).any(dim=1)
    v = torch.where(drafted[:, None], blend(p, node.draft_law().dense().to(p.dtype)), p)
    step = solve_standard_batch(replace(node, p=DenseLaw(v)))
    return replace(step, reason=torch.full_like(step.slot, int(Reason.RELAXED)))


def ensemble(weight: float = 0.8) -> Rule:
    """weight: the target's share w of the mixture; 1 is the exact rule."""
    if not 0 <= weight <= 1:
        raise UsageError("ensemble: weight lies in [0, 1]")

    def mix(p: Array, q: Array) -> Array:
        return weight * p + (1 - weight) * q

    def mix_batch(p: Tensor, q: Tensor) -> Tensor:
        return weight * p + (1 - weight) * q

    return Rule(
        name=label("ensemble", weight=(weight, 0.8)),
        summary="samples exactly from a mixture of target and draft (lossy)",
        exact_for=frozenset(),
        verify=partial(walk, partial(solve_blend, mix)),
        verify_batch=partial(walk_ahead, partial(solve_blend_batch, mix_batch)),
        lossy=True,
        needs_laws=True,
    )


def mentored(divergence: float = 0.1) -> Rule:
    """divergence: the bound D on KL(p || v) in nats; 0 is the exact rule."""
    if not divergence >= 0:
        raise UsageError("mentored: divergence is 0 or positive")
    clip = partial(mentor_law, bound=divergence)

    def clip_batch(p: Tensor, q: Tensor) -> Tensor:
        v = clip(p.double().cpu().numpy(), q.double().cpu().numpy())
        return torch.from_numpy(v).to(p)

    return Rule(
        name=label("mentored", divergence=(divergence, 0.1)),
        summary="accepts as much as a bound on KL(target || output) allows (lossy)",
        exact_for=frozenset(),
        verify=partial(walk, partial(solve_blend, clip)),
        verify_batch=partial(walk_ahead, partial(solve_blend_batch, clip_batch)),
        lossy=True,
        needs_laws=True,
    )


def mentor_law(p: Array, q: Array, bound: float) -> Array:
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
