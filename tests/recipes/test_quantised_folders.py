"""Quantised folders through the front door: the text of their plain numbers on a CPU; what stays quantised on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.errors import UsageError
from foredraft.models.config import read_json
from foredraft.models.layers.int8_linear import EightBitLinear
from foredraft.models.quantisation.grouped_linear import GroupedLinear
from foredraft.recipes import loading
from foredraft.recipes.loading import Place

from ..bench.conftest import write_tokenizer
from ..models.ggufs import write_gguf
from ..models.packers import FORMATS, write_folder, write_plain

CPU = torch.device("cpu")


def kept(name: str, folder: Path, quantize: str | None = None) -> object:
    """What the loader makes of a folder for CUDA, here on a CPU."""
    raw, place = read_json(folder / "config.json"), Place(quantize=quantize)
    return loading._kept_quantised(name, folder, raw, torch.float32, CPU, place, lambda *_: None)


@pytest.mark.parametrize("name", ["gptq act-order", "awq"])
def test_a_quantised_folder_writes_what_its_plain_numbers_write(name: str, tmp_path: Path) -> None:
    write_plain(tmp_path / "plain", write_folder(tmp_path / "packed", FORMATS[name], vocabulary=272), vocabulary=272)
    params, texts = SamplingParams(max_new_tokens=24, ignore_eos=True), []
    for folder in (tmp_path / "plain", tmp_path / "packed"):
        write_tokenizer(folder)
        llm = LLM(str(folder), "prompt-lookup", dtype="fp32", device="cpu")
        texts.append(llm.generate(["abc abc ab"], params)[0].token_ids)
    assert texts[0] == texts[1] and len(texts[0]) == 24


def test_wide_models_stay_quantised_and_narrow_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "packed", FORMATS["awq"])
    name = str(tmp_path / "packed")
    assert kept(name, tmp_path / "packed") is None
    monkeypatch.setattr(loading, "WIDEST_ALONE", 64)
    decoder = kept(name, tmp_path / "packed")
    assert isinstance(decoder, torch.nn.Module) and any(isinstance(p, GroupedLinear) for p in decoder.modules())


def test_gguf_files_stay_quantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.models.load.gguf import convert_gguf

    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", head_dim=32)
    folder = convert_gguf(path, tmp_path / "out", weights=False)
    monkeypatch.setattr(loading, "WIDEST_ALONE", 32)
    decoder = kept(str(path), folder)
    assert isinstance(decoder, torch.nn.Module) and any(isinstance(p, GroupedLinear) for p in decoder.modules())


@pytest.mark.parametrize(
    ("quantize", "kind"), [("int8", EightBitLinear), ("fp8", EightBitLinear), ("int4", GroupedLinear)]
)
def test_plain_folders_are_rounded_on_request(quantize: str, kind: type, tmp_path: Path) -> None:
    write_plain(tmp_path / "plain", write_folder(tmp_path / "packed", FORMATS["awq"]))
    decoder = kept(str(tmp_path / "plain"), tmp_path / "plain", quantize)
    assert isinstance(decoder, torch.nn.Module) and any(isinstance(p, kind) for p in decoder.modules())


def test_fp8_is_refused_on_a_cpu(tmp_path: Path) -> None:
    write_plain(tmp_path / "plain", write_folder(tmp_path / "packed", FORMATS["awq"]))
    with pytest.raises(UsageError, match="int8 or int4"):
        LLM(str(tmp_path / "plain"), "plain", device="cpu", quantize="fp8")
