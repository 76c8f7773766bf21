"""A judge on disk: whole, readable by anybody, and refused by any model but its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from foredraft.errors import ForedraftError, UsageError
from foredraft.judge.fit.pipeline import TrainOrder, train
from foredraft.judge.labels.record import write_records
from foredraft.models.judges import JudgeHead, change, load_judge, read_spec, save_judge
from foredraft.recipes import LLM, Options
from foredraft.recipes.judge_rules import checked, probe_states, target_identity
from foredraft.recipes.loading import Loaded, Place, load
from foredraft.runtime import Rows

from .miniature import loaded, texts, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def target(model: Path) -> Loaded:
    return loaded(model)


@pytest.fixture(scope="module")
def made(target: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge that was trained on a few texts."""
    folder = tmp_path_factory.mktemp("judge")
    write_records(folder / "labels.jsonl", texts(target, 60, tap=2))
    train(TrainOrder((folder / "labels.jsonl",), tap="2"), target, None, folder)
    return folder


@pytest.fixture
def judge(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    folder = tmp_path / "judge"
    folder.mkdir()
    for name in ("judge.json", "judge.safetensors"):
        (folder / name).write_bytes((made / name).read_bytes())
    return folder


def test_a_judge_that_was_cut_off_while_it_was_saved_is_none(
    target: Loaded, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights must never stand beside an old spec, with its thresholds and its promise."""
    found = load_judge(judge, target_identity(target))

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("foredraft.models.judges.artefact.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        save_judge(judge, found)
    with pytest.raises(UsageError, match="holds no judge"):
        read_spec(judge)


def test_what_is_saved_is_loaded(target: Loaded, judge: Path, tmp_path: Path) -> None:
    found = load_judge(judge, target_identity(target))
    save_judge(tmp_path / "again", found)
    again = load_judge(tmp_path / "again", target_identity(target))
    assert again.spec == found.spec
    rows = torch.randn(9, found.spec.width)
    assert torch.equal(again.head(rows), found.head(rows))
    perceptron = replace(found, head=JudgeHead(32, 5), spec=replace(found.spec, kind="mlp", units=5, domain=None))
    save_judge(tmp_path / "mlp", perceptron)
    assert torch.equal(load_judge(tmp_path / "mlp", target_identity(target)).head(rows), perceptron.head(rows))


def test_another_engine_can_read_it(target: Loaded, judge: Path) -> None:
    """With nothing but JSON, the tensors and the page that describes them: score = sigmoid(w h + b)."""
    about = json.loads((judge / "judge.json").read_text(encoding="utf-8"))
    tensors = load_file(judge / "judge.safetensors")
    assert about["format"] == 1 and about["kind"] == "linear" and about["reads"] == ["target"] and about["tap"] == 2
    assert "probability that the drafted token is right" in about["polarity"]
    line = [7, 8, 9, 10]
    out = target.executor.forward(Rows.chains([0], [line], target.executor.device), (2,))
    target.executor.rollback([0], [0])
    state = out.hidden[2][3].numpy()
    score = 1 / (1 + np.exp(-(tensors["outer.weight"][0] @ state + tensors["outer.bias"][0])))
    mine = load_judge(judge, target_identity(target)).head(out.hidden[2][3])
    assert float(mine) == pytest.approx(float(score), abs=1e-5)


def test_another_model_is_refused(judge: Path, target: Loaded, tmp_path: Path) -> None:
    """Another shape by what judge.json says; other weights of the same shape by their states."""
    wider = loaded(write_model(tmp_path / "wider", layers=4))
    with pytest.raises(UsageError, match=r"another target \(num_layers 3, not 4\)"):
        checked(judge, wider)
    stranger = loaded(write_model(tmp_path / "stranger", seed=5))
    with pytest.raises(UsageError, match="states of another model"):
        checked(judge, stranger)
    with pytest.raises(UsageError, match="states of another model"):
        LLM(str(tmp_path / "stranger"), "draft-model", drafter="layers:1", judge=str(judge), device="cpu")
    identity = replace(target_identity(target), tokenizer="0" * 64)
    with pytest.raises(UsageError, match="tokenizer") as refusal:
        load_judge(judge, identity)
    assert "\n" not in str(refusal.value)


def test_the_same_model_in_bf16_is_accepted(judge: Path, model: Path) -> None:
    assert checked(judge, load(str(model), Place("bf16", "cpu"))).spec.tap == 2


def test_the_check_leaves_running_text_alone(target: Loaded) -> None:
    line = [5, 6, 7, 8, 9]
    whole = target.executor.forward(Rows.chains([0], [line], target.executor.device)).logits[-1]
    target.executor.rollback([0], [0])
    target.executor.prefill([0], [line[:-1]])
    probe_states(target.executor, (11, 12, 13, 14, 15, 16))
    assert target.executor.length(0) == 4
    after = target.executor.forward(Rows.chains([0], [line[-1:]], target.executor.device)).logits[-1]
    target.executor.rollback([0], [0])
    torch.testing.assert_close(after, whole, rtol=1e-3, atol=1e-3)


def test_damaged_files_say_so(judge: Path, target: Loaded, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no judge"):
        read_spec(tmp_path)
    raw = json.loads((judge / "judge.json").read_text(encoding="utf-8"))
    (judge / "judge.json").write_text(json.dumps(raw | {"format": 99}), encoding="utf-8")
    with pytest.raises(ForedraftError, match="format 1"):
        read_spec(judge)
    (judge / "judge.json").write_text(json.dumps(raw | {"units": 3}), encoding="utf-8")
    with pytest.raises(ForedraftError, match="does not match"):
        load_judge(judge, target_identity(target))
    del raw["kind"]
    (judge / "judge.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ForedraftError, match="incomplete"):
        read_spec(judge)


def test_rules_from_a_folder(judge: Path, model: Path) -> None:
    """`judge`, `judge:0.9`, `judge:control=true`; a judge without a threshold is off."""
    llm = LLM(str(model), "plain", device="cpu")

    def rule(text: str | None) -> str:
        options = Options(rule=text, drafter="layers:1", judge=str(judge))
        return llm.build_fresh("draft-model", options).rule.name

    assert rule(None) == rule("judge") == rule("judge:0.9") == rule("judge:control=true,floor=0.1") == "judge"
    assert llm.build_fresh("draft-model", Options(drafter="layers:1", judge=str(judge))).taps == {2}
    with pytest.raises(UsageError, match="unknown parameter"):
        rule("judge:tea=1")
    with pytest.raises(UsageError, match="goes with the rule 'judge'"):
        Options(rule="typical", judge=str(judge))
    with pytest.raises(UsageError, match="no judge for"):
        llm.build_fresh("draft-model", Options(rule="judge", drafter="layers:1"))
    change(judge, reads=("target", "draft"), draft_size=99)
    with pytest.raises(UsageError, match="width 99"):
        rule("judge")
    with pytest.raises(UsageError, match="states of a draft model"):
        llm.build_fresh("prompt-lookup", Options(judge=str(judge)))
