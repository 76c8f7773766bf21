"""The training objectives of the field, in one place. All take logits and return one value per row, [N] float32.

p is the target's distribution (the teacher), q the drafter's (the student). Gradients flow into the student only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(student: Tensor, label: Tensor) -> Tensor:
    """-log q(label)."""
    return F.cross_entropy(student.float(), label, reduction="none")


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(p || q) = sum p log(p / q): the soft cross-entropy less the teacher's entropy."""
    value: Tensor = _ForwardKL.apply(student, teacher)  # type: ignore[no-untyped-call]
    return value


class _ForwardKL(torch.autograd.Function):
    """Works out its gradient, q - p, beside its value: over large vocabularies memory traffic is what costs."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
        run = _fused() if student.is_cuda else _value_and_slope
        value, slope = run(student, teacher)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return grad[:, None].to(difference.dtype) * difference, None


def _value_and_slope(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """(KL(p || q) [N] float32, q - p [N, V]). With lse = log sum exp: KL = lse(s) - sum p s - H(p)."""
    p, q = teacher.softmax(-1, dtype=torch.float32), student.softmax(-1, dtype=torch.float32)
    lse = student.float().logsumexp(-1)
    value = lse - (p * student).sum(-1) - torch.special.entr(p).sum(-1)
    return value, (q - p).to(student.dtype)


@functools.cache
def _fused() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return _compiled(_value_and_slope)


@functools.cache
def _fused_pair() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]:
    return _compiled(_pair_and_slopes)


def _compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel instead of ten passes over the vocabulary; as it stands where nothing can be compiled."""
    fused = torch.compile(plain, dynamic=True)
    try:
        probe = torch.zeros((2, 8), device="cuda")
        fused(probe, probe)
    except Exception:  # no compiler, no Triton: many ways to fail, and all of them only cost speed
        return plain
    return fused


def kl_and_acceptance(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p || q) and sum min(p, q), the chance that a sampled draft is accepted, from one look at both."""
    value, chance = _KLAndAcceptance.apply(student, teacher)  # type: ignore[no-untyped-call]
    return value, chance


class _KLAndAcceptance(torch.autograd.Function):
    """With c = [q < p] the chance a is sum c q + sum (1 - c) p, so da/dz = q (c - sum c q)."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        run = _fused_pair() if student.is_cuda else _pair_and_slopes
        value, chance, slope, rise = run(student, teacher)
        ctx.save_for_backward(slope, rise)
        return value, chance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_chance: Tensor) -> tuple[Tensor, None]:
        slope, rise = ctx.saved_tensors
        return grad[:, None].to(slope.dtype) * slope + grad_chance[:, None].to(slope.dtype) * rise, None


def _pair_and_slopes(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p, q = teacher.softmax(-1, dtype=torch.float32), student.softmax(-1, dtype=torch.float32)
    lse = student.float().logsumexp(-1)
    value = lse - (p * student).sum(-1) - torch.special.entr(p).sum(-1)
    below = torch.where(q < p, q, 0.0)
    rise = below - q * below.sum(-1, keepdim=True)
    return value, torch.minimum(p, q).sum(-1), (q - p).to(student.dtype), rise.to(student.dtype)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(q || p)."""
    log_p, log_q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    return _mean_under(log_q.exp(), log_q - log_p)


def jensen_shannon(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q."""
    p, q = teacher.float().softmax(-1), student.float().softmax(-1)
    m = (beta * p + (1 - beta) * q).clamp(min=1e-30).log()
    forward = _mean_under(p, p.clamp(min=1e-30).log() - m)
    return beta * forward + (1 - beta) * _mean_under(q, q.clamp(min=1e-30).log() - m)


def total_variation(student: Tensor, teacher: Tensor) -> Tensor:
    """1/2 sum |p - q|: one minus the chance that a sampled draft is accepted."""
    return 0.5 * (teacher.float().softmax(-1) - student.float().softmax(-1)).abs().sum(-1)


def smooth_l1(student: Tensor, teacher: Tensor) -> Tensor:
    """Features [N, d]: quadratic within 1, linear beyond, mean over the channels."""
    return F.smooth_l1_loss(student.float(), teacher.float(), reduction="none").mean(-1)


def _mean_under(weight: Tensor, value: Tensor) -> Tensor:
    """sum weight value, where weight 0 wins over an infinite value."""
    return torch.where(weight > 0, weight * value, 0.0).sum(-1)


def top_cross_entropy(student: Tensor, teacher: Tensor, count: int) -> Tensor:
    """sum p log(p / q) over the teacher's `count` most likely tokens: GRIFFIN's top-k loss, -sum p log q, less what no
    student can change."""
    best = teacher.float().log_softmax(-1).topk(min(count, teacher.shape[-1]), dim=-1)
    log_q = student.float().log_softmax(-1).gather(-1, best.indices)
    return (best.values.exp() * (best.values - log_q)).sum(-1)


LABELS = "ce"  # the cross-entropy of the text's own tokens, which needs no teacher
# Objectives on distributions, by the names that `foredraft train --objective` takes.
OBJECTIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tvd": total_variation,
}
