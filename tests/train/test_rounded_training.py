"""Heads that learn to be rounded, and heads that go on with more layers than they had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foredraft.errors import UsageError
from foredraft.models.heads import as_stored, own_parameters, read_weights, save_head
from foredraft.train.pipeline import TrainOrder, pretrained_heads, with_more_layers
from foredraft.train.student import Student
from foredraft.train.trainer import ROUND_FROM, Trainer

from . import toys


def gradients(student: Student) -> dict[str, Tensor]:
    own = own_parameters(student.head)  # type: ignore[arg-type]
    found = {name: p.grad.clone() for name, p in own.items() if p.grad is not None}
    student.optimizer.zero_grad(set_to_none=True)
    return found


def of_a_step(trainer: Trainer, progress: float, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The gradients of a step before they are used."""
    seen: list[dict[str, Tensor]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Student, "update", lambda self, _: seen.append(gradients(self)))
        trainer.train_step(0, progress)
    return seen[0]


@pytest.mark.parametrize("storage", ["int4", "int8", "bf16"])
def test_weights_are_for_a_while_what_the_file_gives_back(tmp_path: Path, storage: str) -> None:
    trainer = toys.trainer(toys.target(), tmp_path, ("eagle3",))
    head = trainer.students[0].head
    before = {name: p.detach().clone() for name, p in own_parameters(head).items()}  # type: ignore[arg-type]
    save_head(tmp_path / "head", head, trainer.students[0].spec, {}, {}, storage)  # type: ignore[arg-type]
    held = read_weights(tmp_path / "head")
    with pytest.raises(KeyboardInterrupt), as_stored(head, storage):  # type: ignore[arg-type]
        assert all(torch.equal(p, held[name]) for name, p in own_parameters(head).items())  # type: ignore[arg-type]
        raise KeyboardInterrupt
    assert all(torch.equal(p, before[name]) for name, p in own_parameters(head).items())  # type: ignore[arg-type]


def test_the_end_of_a_training_for_4_bits_sees_rounded_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toys.trainer(toys.target(), tmp_path, ("eagle3",))
    head = trainer.students[0].head
    full = of_a_step(trainer, 0.9, monkeypatch)
    trainer.plan = replace(trainer.plan, storage="int4")
    early, late = (of_a_step(trainer, progress, monkeypatch) for progress in (ROUND_FROM - 0.01, 0.9))
    with as_stored(head, "int4"):  # type: ignore[arg-type]
        trainer.plan = replace(trainer.plan, storage="int8")
        rounded = of_a_step(trainer, 0.9, monkeypatch)
    same: Callable[[dict[str, Tensor]], bool] = lambda found: all(torch.equal(found[name], full[name]) for name in full)  # noqa: E731
    assert same(early) and not same(late)
    assert all(torch.equal(late[name], rounded[name]) for name in full)


def test_further_layers_are_silent_at_first(tmp_path: Path) -> None:
    decoder = toys.target()
    first = toys.trainer(decoder, tmp_path / "first", ("eagle3",), steps=6)
    first.run()
    student = first.students[0]
    save_head(tmp_path / "heads" / "eagle3", student.head, student.spec, {}, {}, "bf16")  # type: ignore[arg-type]
    order = TrainOrder(("eagle3",), "toy", (), tmp_path, begin=tmp_path / "heads")
    same, more = (
        toys.trainer(
            decoder, tmp_path / str(layers), ("eagle3",), steps=3,
            begin=pretrained_heads(replace(order, changes={"layers": layers}), toys.identity(decoder)),
        )
        for layers in (1, 2)
    )  # fmt: skip
    assert more.students[0].spec.layers == 2
    outputs = same._held_outputs(0, 8)
    guesses = [t.students[0].kind.guess(t.students[0].head, outputs, 3) for t in (same, more)]
    assert guesses[0] is not None and guesses[1] is not None and torch.equal(guesses[0], guesses[1])
    added = own_parameters(more.students[0].head)["layers.1.out.weight"]  # type: ignore[arg-type]
    assert not added.any()
    more.run()
    assert added.any()
    two = pretrained_heads(replace(order, changes={"layers": 2}), toys.identity(decoder))
    assert two["eagle3"].spec.layers == 2
    with pytest.raises(UsageError, match="as many or more"):
        with_more_layers(two["eagle3"], 1)
