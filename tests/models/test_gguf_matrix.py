"""GGUF files that stay quantised outside of the native library: the numbers that `gguf` dequantises to, in few bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft.models import load_decoder
from foredraft.models.load import gguf_blocks
from foredraft.models.load.gguf import convert_gguf, widen_gguf
from foredraft.models.quantisation import gguf_matrix
from foredraft.models.quantisation.gguf_matrix import load_gguf, matrix_of
from foredraft.models.quantisation.grouped_linear import GroupedLinear

from .conftest import forward
from .ggufs import write_gguf
from .test_quantised import SCALES, stored

BYTES = {"Q4_0": 1.01, "Q4_1": 1.01, "Q4_K": 1.03, "IQ4_NL": 1.01, "IQ4_XS": 1.05, "Q8_0": 1.01, "Q6_K": 1.31}
IDS = torch.arange(40, 60)


@pytest.mark.parametrize("kind", SCALES)
def test_a_matrix_holds_what_the_file_holds(kind: str) -> None:
    data, true = stored(kind)
    matrix = matrix_of(kind, data)
    assert torch.equal(matrix.dense(), true)
    assert matrix.nbytes <= BYTES.get(kind, 3.5) * data.nbytes


def test_every_format_of_the_reader_is_held() -> None:
    assert {*gguf_blocks.READERS, "Q8_0"} == set(SCALES)


@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_a_file_runs_as_its_widened_folder(architecture: str, tied: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, architecture, tied, head_dim=32)
    folder = convert_gguf(path, tmp_path / "out", weights=False)
    kept = load_gguf(folder, path, torch.float32, "cpu")
    widen_gguf(path, folder)
    true = load_decoder(folder)
    expected, found = forward(true, IDS), forward(kept, IDS)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()
    assert isinstance(kept.head, GroupedLinear) and torch.equal(kept.head.weight, true.head_weight)
    assert torch.equal(kept.embedding, true.embedding)
    assert sum(isinstance(part, GroupedLinear) for part in kept.modules()) == 4 * 2 + 1


def test_an_unknown_format_becomes_plain_numbers_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", head_dim=32)
    folder = convert_gguf(path, tmp_path / "out", weights=False)
    monkeypatch.setattr(gguf_matrix, "KEPT", ())
    with caplog.at_level("WARNING", "foredraft"):
        kept = load_gguf(folder, path, torch.float32, "cpu")
    assert len(caplog.records) == 1 and "Q8_0" in caplog.text
    assert not any(isinstance(part, GroupedLinear) for part in kept.modules())
    widen_gguf(path, folder)
    assert torch.equal(forward(kept, IDS), forward(load_decoder(folder), IDS))
