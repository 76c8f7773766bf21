"""KOALA: who learns when, and that neither side's loss moves the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from foredraft.models.heads import own_parameters
from foredraft.train.kinds.koala import Discriminator, adversarial_loss
from foredraft.train.student import Student

from . import toys


def moved(student: Student, trainer: toys.Trainer, progress: float) -> tuple[bool, bool]:
    """Whether a step's gradients reach the head, and the discriminator."""
    student.accumulate(trainer._held_outputs(0, 8), progress)
    assert student.rival is not None
    sides = [own_parameters(student.head).values(), student.rival.parameters()]  # type: ignore[arg-type]
    found = [any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in side) for side in sides]
    for optimizer in (student.optimizer, student.rival_optimizer):
        assert optimizer is not None
        optimizer.zero_grad(set_to_none=True)
    return found[0], found[1]


@pytest.mark.parametrize("kind", ["koala", "koala-medusa"])
def test_the_head_begins_then_the_discriminator_then_both(kind: str, tmp_path: Path) -> None:
    trainer = toys.trainer(toys.target(), tmp_path, (kind,))
    student = trainer.students[0]
    assert moved(student, trainer, 0.3) == (True, False)
    assert moved(student, trainer, 0.62) == (False, True)
    assert moved(student, trainer, 0.9) == (True, True)


def test_each_side_sees_the_other_as_fixed() -> None:
    """Gradients against those of the two losses written out, with the other side held."""
    torch.manual_seed(0)
    rival = Discriminator(8, torch.device("cpu"))
    real, state, fake = torch.randn(30, 8), torch.randn(30, 8), torch.randn(30, 8, requires_grad=True)
    adversarial_loss(rival, real, fake, state, 0.3, 1.0).backward()  # type: ignore[no-untyped-call]
    assert fake.grad is not None
    got = [p.grad.clone() for p in rival.parameters() if p.grad is not None]
    head_side = 0.3 * -torch.log(torch.sigmoid(rival(fake, state))).mean()
    assert torch.allclose(fake.grad, torch.autograd.grad(head_side, fake)[0], atol=1e-6)
    of_real, of_fake = torch.sigmoid(rival(real, state)), torch.sigmoid(rival(fake.detach(), state))
    own = -(0.9 * of_real.log() + 0.1 * (1 - of_real).log()).mean() - (1 - of_fake).log().mean()
    for mine, true in zip(got, torch.autograd.grad(own, list(rival.parameters())), strict=True):
        assert torch.allclose(mine, true, atol=1e-5)


def test_a_discriminator_that_is_right_rests() -> None:
    torch.manual_seed(0)
    rival = Discriminator(8, torch.device("cpu"))
    real, fake, state = torch.randn(200, 8) + 3, torch.randn(200, 8) - 3, torch.zeros(200, 8)
    optimizer = torch.optim.Adam(rival.parameters(), lr=1e-2)
    for _ in range(200):
        loss = adversarial_loss(rival, real, fake, state, 0.0, 0.0)
        if float(loss.detach()) == 0.0:
            break
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    right = ((rival(real, state) > 0).float().mean() + (rival(fake, state) < 0).float().mean()) / 2
    assert float(loss.detach()) == 0.0 and float(right) >= 0.85
    assert float(F.softplus(rival(fake, state)).mean().detach()) < 0.7
