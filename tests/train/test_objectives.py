"""Every objective against its definition in plain sums, and the gradients that the papers print."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from foredraft.train import objectives as o


def distributions(seed: int = 0, rows: int = 4, words: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, words, generator=generator) for _ in range(2))  # type: ignore[return-value]


def sums(student: Tensor, teacher: Tensor) -> list[tuple[list[float], list[float]]]:
    p, q = teacher.double().softmax(-1).tolist(), student.double().softmax(-1).tolist()
    return list(zip(p, q, strict=True))


def kl(a: list[float], b: list[float]) -> float:
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))


def mixture(p: list[float], q: list[float], beta: float) -> list[float]:
    return [beta * x + (1 - beta) * y for x, y in zip(p, q, strict=True)]


REFERENCE = {
    "kl": lambda p, q: kl(p, q),
    "reverse-kl": lambda p, q: kl(q, p),
    "jsd": lambda p, q: 0.5 * kl(p, mixture(p, q, 0.5)) + 0.5 * kl(q, mixture(p, q, 0.5)),
    "tvd": lambda p, q: 0.5 * sum(abs(x - y) for x, y in zip(p, q, strict=True)),
}


@pytest.mark.parametrize("name", o.OBJECTIVES)
def test_definition(name: str) -> None:
    student, teacher = distributions()
    expected = [REFERENCE[name](p, q) for p, q in sums(student, teacher)]
    assert torch.allclose(o.OBJECTIVES[name](student, teacher), torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize("beta", [0.1, 0.9])
def test_skewed_jensen_shannon(beta: float) -> None:
    student, teacher = distributions(1)
    expected = [
        beta * kl(p, mixture(p, q, beta)) + (1 - beta) * kl(q, mixture(p, q, beta)) for p, q in sums(student, teacher)
    ]
    assert torch.allclose(o.jensen_shannon(student, teacher, beta), torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize("name", o.OBJECTIVES)
def test_zero_where_the_distributions_agree_and_nowhere_else(name: str) -> None:
    student, teacher = distributions(2)
    assert float(o.OBJECTIVES[name](teacher.clone(), teacher).abs().max()) < 1e-6
    assert float(o.OBJECTIVES[name](student, teacher).min()) > 1e-3


def test_gradients() -> None:
    """With respect to the student's logits: FKL q - p; RKL q (log(q / p) - RKL); TVD q (s - sum q s)."""
    student, teacher = distributions(3)
    p, q = teacher.softmax(-1), student.softmax(-1)
    ratio = (q / p).log()
    sign = 0.5 * (q - p).sign()
    expected = {
        "kl": q - p,
        "reverse-kl": q * (ratio - (q * ratio).sum(-1, keepdim=True)),
        "tvd": q * (sign - (q * sign).sum(-1, keepdim=True)),
    }
    for name, gradient in expected.items():
        leaf = student.clone().requires_grad_(True)
        o.OBJECTIVES[name](leaf, teacher).sum().backward()
        assert torch.allclose(leaf.grad, gradient, atol=1e-5), name


def test_cross_entropy_and_smooth_l1() -> None:
    student, _ = distributions(4)
    label = torch.tensor([0, 3, 6, 2])
    expected = [-math.log(row.double().softmax(-1)[i]) for row, i in zip(student, label.tolist(), strict=True)]
    assert torch.allclose(o.cross_entropy(student, label), torch.tensor(expected), atol=1e-6)
    a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 3.0]])
    assert float(o.smooth_l1(a, b)) == pytest.approx((0.5 * 0.25 + 3.0 - 0.5) / 2)


def test_an_impossible_token_is_no_nan() -> None:
    teacher = torch.tensor([[0.0, -math.inf, 1.0]])
    for name in ("kl", "jsd", "tvd"):
        assert torch.isfinite(o.OBJECTIVES[name](torch.zeros(1, 3), teacher)).all()


def test_the_top_of_a_cross_entropy_is_part_of_it() -> None:
    student, teacher = torch.randn(4, 9), torch.randn(4, 9)
    parts = teacher.softmax(-1) * (teacher.log_softmax(-1) - student.log_softmax(-1))
    assert torch.allclose(o.top_cross_entropy(student, teacher, 9), parts.sum(-1), atol=1e-6)
    best = teacher.argmax(-1, keepdim=True)
    assert torch.allclose(o.top_cross_entropy(student, teacher, 1), parts.gather(1, best)[:, 0], atol=1e-6)
