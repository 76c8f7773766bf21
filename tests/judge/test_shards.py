"""Features on disk: the same heads as in memory, written once, and a cut run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foredraft.errors import UsageError
from foredraft.judge.fit import shards
from foredraft.judge.fit.features import extract
from foredraft.judge.fit.pipeline import TrainOrder, train
from foredraft.judge.fit.shards import StoredRows, write_shards
from foredraft.judge.labels.record import LabelledText, write_records
from foredraft.models.judges import load_judge, read_spec
from foredraft.recipes.judge_rules import target_identity
from foredraft.recipes.loading import Loaded

from .miniature import loaded, texts, write_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return loaded(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def records(target: Loaded) -> list[LabelledText]:
    return texts(target, 80)


def test_rows_come_back_as_they_were(
    target: Loaded, records: list[LabelledText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 16 bits, in order, whatever the parts; and memory holds a part of them at a time."""
    monkeypatch.setattr(shards, "PART", 100)
    stored = write_shards(tmp_path / "f", target.executor, records, (2, -1), texts=32)
    whole = extract(target.executor, records, (2, -1))
    assert [path.name for path in stored.files] == ["00000.safetensors", "00001.safetensors", "00002.safetensors"]
    assert torch.equal(stored.right, whole.right) and torch.equal(stored.text, whole.text)
    for reads in (("target",), ("target", "evidence"), ("evidence",)):
        parts = list(stored.rows(reads, 2).parts())
        assert max(map(len, parts)) <= 100 and len(parts) > 3
        assert torch.allclose(torch.cat(parts), whole.rows(reads, 2), rtol=2e-3, atol=2e-3)
    assert stored.bytes < 1.2 * sum(x.numel() * 2 for x in whole.states.values()) + 40 * len(whole.right)
    with pytest.raises(UsageError, match="holds no 'tap 1'"):
        list(stored.rows(("target",), 1).parts())
    assert isinstance(stored.rows(("target",), 2), StoredRows)


def test_a_cut_run_goes_on_and_others_are_refused(
    target: Loaded, records: list[LabelledText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f"
    write_shards(folder, target.executor, records, (-1,), texts=32)
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    (folder / "00001.safetensors").unlink()
    read: list[int] = []
    monkeypatch.setattr(shards, "extract", lambda *args: read.append(len(args[1])) or extract(*args))
    write_shards(folder, target.executor, records, (-1,), texts=32)
    assert read == [1, 32] and {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == before
    for change in ({"taps": (2,)}, {"records": records[1:]}, {"about": {"dtype": "bf16"}}):
        arguments = {"records": records, "taps": (-1,), "about": None} | change
        with pytest.raises(UsageError, match="holds features with other"):
            write_shards(folder, target.executor, arguments["records"], arguments["taps"],  # type: ignore[arg-type]
                         about=arguments["about"], texts=32)  # type: ignore[arg-type]  # fmt: skip


def test_models_of_the_same_shape_are_told_apart(
    target: Loaded, records: list[LabelledText], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A fine-tuned target, and another drafter: their states are not those that the folder holds."""
    other = loaded(write_model(tmp_path_factory.mktemp("other"), seed=5)).executor
    for name, models in (("target", (other, None)), ("drafter", (target.executor, other))):
        own = None if models[1] is None else target.executor
        folder = tmp_path / name
        write_shards(folder, target.executor, records, (-1,), own)
        write_shards(folder, target.executor, records, (-1,), own)
        with pytest.raises(UsageError, match=f"features of another {name}"):
            write_shards(folder, models[0], records, (-1,), models[1])


def test_large_states_stay_finite(
    target: Loaded, records: list[LabelledText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some models have streams beyond 65504, the largest number of the finer 16 bits."""
    whole = extract(target.executor, records, (-1,))
    large = replace(whole, states={-1: whole.states[-1] * 1e6})
    monkeypatch.setattr(shards, "extract", lambda *args: large)
    rows = torch.cat(list(write_shards(tmp_path, target.executor, records, (-1,)).rows(("target",)).parts()))
    assert torch.allclose(rows, large.states[-1], rtol=1e-2)


def test_a_judge_from_disk_is_the_judge_from_memory(
    target: Loaded, records: list[LabelledText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "PART", 300)
    labels = tmp_path / "labels.jsonl"
    write_records(labels, records)
    order = {"labels": (labels,), "reads": (("target",), ("target", "evidence"))}
    memory = train(TrainOrder(**order), target, None, tmp_path / "memory")  # type: ignore[arg-type]
    disk = train(TrainOrder(**order, features=tmp_path / "f"), target, None, tmp_path / "disk")  # type: ignore[arg-type]
    assert disk.figures["test_auc"] == pytest.approx(memory.figures["test_auc"], abs=0.01)
    assert disk.figures["validation_auc"] > 0.8 and abs(disk.figures["shuffled_auc"] - 0.5) < 0.1
    rows = torch.randn(200, read_spec(tmp_path / "disk").width)
    heads = [load_judge(tmp_path / name, target_identity(target)).head for name in ("memory", "disk")]
    distances = [head.domain.distance(rows) for head in heads]  # type: ignore[union-attr]
    assert torch.allclose(*distances, rtol=0.05)
    with pytest.raises(UsageError, match="for linear heads"):
        train(TrainOrder((labels,), kind="mlp", features=tmp_path / "g"), target, None, tmp_path / "no")
