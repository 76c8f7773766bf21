"""What the target says of texts is worked out once where there is room, and training sees the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft.models.heads import own_parameters
from foredraft.train import teacher
from foredraft.train.teacher import KeptOutputs
from foredraft.train.trainer import Trainer

from . import toys

KINDS = ("forerunner", "eagle3", "medusa")  # states, keys and values; states alone; the last ones alone


def counted(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass of the target from now on."""
    passes: list[int] = []
    inner = trainer.teacher.outputs
    monkeypatch.setattr(trainer.teacher, "outputs", lambda ids, *rest: [passes.append(len(ids)), inner(ids, *rest)][1])
    return passes


def test_texts_that_come_again_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toys.trainer(toys.target(), tmp_path, ("eagle3",), steps=70, rows=8)
    passes = counted(trainer, monkeypatch)
    step = trainer.train_step
    by_step: list[int] = []
    monkeypatch.setattr(trainer, "train_step", lambda *given: [step(*given), by_step.append(len(passes))])
    trainer.run()
    in_epoch = len(trainer.corpus) // 8
    read = [after > before for before, after in zip([0, *by_step], by_step, strict=False)]
    assert all(read[:in_epoch]) and sum(read) < len(read) / 2, "but for rows that earlier passes left out"


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a target that reads everything again, but for the rounding of products of other shapes."""
    kept = toys.trainer(toys.target(), tmp_path / "kept", (kind,), steps=40, rows=8)
    kept.run()
    monkeypatch.setattr(teacher, "free_bytes", lambda device: 0)
    again = toys.trainer(toys.target(), tmp_path / "again", (kind,), steps=40, rows=8)
    passes = counted(again, monkeypatch)
    again.run()
    assert len(passes) >= 40, "without room the target reads every text again"
    ours, others = (own_parameters(t.students[0].head) for t in (kept, again))  # type: ignore[arg-type]
    for name, parameter in ours.items():
        assert torch.allclose(parameter, others[name], atol=2e-3), name


def test_rows_are_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In other company and at another width; beyond a text there are zeros."""
    monkeypatch.setattr(teacher, "FIRST", 1)
    trainer = toys.trainer(toys.target(), tmp_path, KINDS, steps=1, rows=8)
    corpus = trainer.corpus
    memory, like = KeptOutputs(corpus), None
    for step in range(len(corpus) // 8):
        for part in corpus.batch(step, 8, 0):
            assert memory.find(part, like) is None
            like = trainer.outputs(part.ids, part.written)
            memory.keep(part, like)
    part = corpus.batch(len(corpus) // 8 + 1, 8, 3)[0]  # of another order
    found = memory.find(part, like)
    assert found is not None, "the pass before left out one of these rows: take another step"
    fresh = trainer.outputs(part.ids, part.written)
    here = (torch.arange(part.ids.shape[1]) < torch.from_numpy(corpus.lengths[part.rows])[:, None])[..., None]
    assert not here.all() and torch.equal(found.ids, fresh.ids) and torch.equal(found.written, fresh.written)
    assert torch.equal(found.best[here[..., 0]], fresh.best[here[..., 0]])
    for tap, state in fresh.states.items():
        assert torch.allclose(found.states[tap] * here, state * here, atol=1e-4)
        assert not (found.states[tap] * ~here).any()
    for layer, pair in fresh.context.items():
        for one, other in zip(found.context[layer], pair, strict=True):
            assert torch.allclose(
                one.transpose(1, 2) * here[..., None], other.transpose(1, 2) * here[..., None], atol=1e-4
            )


@pytest.mark.parametrize(("processes", "fits"), [(1, True), (4, False)])
def test_processes_share_the_memory_of_a_cpu(
    processes: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = toys.trainer(toys.target(), tmp_path, ("medusa",), steps=1, rows=8)
    part = trainer.corpus.batch(0, 8, 0)[0]
    said = trainer.outputs(part.ids, part.written)
    one = sum(column[0, 0].numel() * column.element_size() for column in teacher._columns(said))
    room = one * (int(trainer.corpus.lengths.sum()) + 1) / teacher.SHARE["cpu"]
    monkeypatch.setattr(teacher, "free_bytes", lambda device: 2 * room)
    monkeypatch.setattr(teacher, "FIRST", 1)
    memory = KeptOutputs(trainer.corpus, processes)
    memory.keep(part, said)
    assert (memory.find(part, said) is not None) == fits
