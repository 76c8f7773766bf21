"""Stages of a training: where they begin, what they learn from, and GRIFFIN's two rules of alignment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft.errors import UsageError
from foredraft.train.kinds import KINDS, Settings, Stage, read_stages
from foredraft.train.kinds.base import distribution_loss
from foredraft.train.teacher import TeacherOutputs


def test_stages_follow_one_another() -> None:
    settings = Settings(stages=read_stages("0.5:1:all:ce,0.75:0.6:2,1:0.4"))
    assert settings.stages == (Stage(0.5, 1.0, None, True, "ce"), Stage(0.75, 0.6, 2), Stage(1.0, 0.4))
    found = [settings.stage(progress) for progress in (0.0, 0.25, 0.5, 0.7, 0.75, 1.0)]
    assert [settings.stages.index(stage) for stage, _ in found] == [0, 0, 1, 1, 2, 2]
    assert [within for _, within in found] == pytest.approx([0.0, 0.5, 0.0, 0.8, 0.0, 1.0])
    assert settings.within(settings.stages[1]).length == 2 and settings.within(settings.stages[0]).objective == "ce"


@pytest.mark.parametrize("text", ["", "0.5", "0.8,0.5,1", "0.5:fast,1", "0.5:1:alle,1", "0:1,1"])
def test_what_is_no_stage_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_stages(text)


def test_published_stages() -> None:
    assert [stage.length for stage in KINDS["griffin"].defaults.stages] == [1, 2, 3]
    assert [stage.pretrains for stage in KINDS["fastdraft"].defaults.stages] == [True, False]
    assert KINDS["mlp-speculator"].defaults.stages[1].lr == 0.1


def outputs() -> TeacherOutputs:
    """A text of six tokens of which the draft vocabulary lacks one."""
    ids = torch.tensor([[5, 3, 4, 7, 3, 5]])
    words = torch.tensor([4, 3, 5])
    states = {-1: torch.randn(1, 6, 2)}
    return TeacherOutputs(ids, torch.ones_like(ids, dtype=torch.bool), states, words, torch.randn(3, 2), ids * 0)


def test_labels_are_the_texts_own_tokens() -> None:
    """3 is draft id 1, 4 is 0, 5 is 2; 7 has none and is left out of the loss."""
    given = outputs()
    assert given.labels(torch.arange(5), 1).tolist() == [1, 0, -1, 1, 2]

    class Head:
        def logits(self, features: torch.Tensor) -> torch.Tensor:
            return features @ given.rows.T

    from foredraft.train.kinds.base import Pass

    features = torch.randn(1, 6, 2)
    loss = distribution_loss(Head(), given, iter([Pass(1, features)]), Settings(objective="ce"))
    slots = given.slots(1)
    label = given.labels(slots, 1)
    want = torch.nn.functional.cross_entropy((features[0] @ given.rows.T)[slots][label >= 0], label[label >= 0])
    assert torch.allclose(loss, want)


def test_plain_text_is_read_as_rows(tmp_path: Path) -> None:
    from foredraft.train.corpus import PLAIN_ROW, load_corpus

    class Letters:
        def encode(self, text: str, add_special: bool = True) -> list[int]:
            return [ord(letter) for letter in text]

    (tmp_path / "book.txt").write_text("ab" * PLAIN_ROW + "c", encoding="utf-8")
    corpus = load_corpus((tmp_path / "book.txt",), Letters())  # type: ignore[arg-type]
    assert corpus.ids.shape == (2, PLAIN_ROW) and corpus.written.all() and corpus.ids[0, 1] == ord("b")
