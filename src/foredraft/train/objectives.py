"""The training objectives of the field, in one place. All take logits and return one value per row, [N] float32.

p is the target's law (the teacher), q the drafter's (the student). Gradients flow into the student only.
"""

from __future__ import annotations

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
        # sum p log(p / q) = lse(s) - sum p s - H(p), and lse(s) = s_i - log q_i for any i.
        p, q = teacher.softmax(-1, dtype=torch.float32), student.softmax(-1, dtype=torch.float32)
        lse = student.amax(-1).float() - q.amax(-1).log()
        value = lse - (p * student).sum(-1) - torch.special.entr(p).sum(-1)
        ctx.save_for_backward(q.sub_(p).to(student.dtype))
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return grad[:, None].to(difference.dtype) * difference, None


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


# Objectives on laws, by the names that `foredraft train --objective` takes.
OBJECTIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tvd": total_variation,
}
