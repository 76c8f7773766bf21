"""Weights rounded on request: said, smaller, near the model's own numbers; refused where it would mean nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.bench.pipeline import Order, run_bench
from foredraft.errors import UsageError
from foredraft.models import native
from foredraft.models.layers.linear import TiledLinear
from foredraft.models.native.tiles import GRID8, NIBBLES, Tiles

from ..bench.conftest import write_tokenizer
from ..models.ggufs import write_gguf

FORMS = {"int8": (GRID8,), "int4": (NIBBLES,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=640, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(("bits", "error"), [(8, 0.01), (4, 0.12)])
@pytest.mark.parametrize("words", [False, True])
def test_rounded_tiles_are_near_the_weight(bits: int, error: float, words: bool) -> None:
    torch.manual_seed(1)
    weight = torch.randn(48, 96)
    weight[3], weight[4, :32] = 0.0, 1e-9  # below what a half-precision step holds
    tiles = Tiles.rounded(weight, bits, words)
    assert (tiles.dense().float() - weight).norm() < error * weight.norm()
    assert tiles.codes.nbytes == weight.numel() * bits // 8


@pytest.mark.skipif(native.compiled() is None, reason="no native library here")
@pytest.mark.parametrize("name", FORMS)
def test_a_folder_is_rounded_on_request_and_says_so(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "foredraft"):
        rounded = LLM(str(folder), "prompt-lookup", dtype="bf16", device="cpu", quantize=name)
    assert [record.getMessage().count(name) for record in caplog.records] == [1]
    assert rounded.target.dtype == f"bf16-{name}"
    decoder = rounded.target.executor.decoder
    assert decoder is not None
    products = [part for part in decoder.modules() if isinstance(part, TiledLinear)]
    assert products and all(part.tiles.format in FORMS[name] for part in products)
    prompt, params = [[5, 6, 7, 5, 6]], SamplingParams(max_new_tokens=12)
    plain = rounded.generate(prompt, params, method=rounded.build("plain"))[0]
    assert rounded.generate(prompt, params)[0].token_ids == plain.token_ids, "exact for the rounded model"


@pytest.mark.skipif(native.compiled() is None, reason="no native library here")
def test_a_benchmark_of_rounded_weights(folder: Path, tmp_path: Path) -> None:
    """They are a condition of the run; exact methods write what the rounded model writes."""
    asked = Order(
        model=str(folder), methods="prompt-lookup", tasks="own-math", limit=1, max_new_tokens=8, dtype="bf16",
        device="cpu", out=tmp_path / "out", quantize="int8",
    )  # fmt: skip
    document = run_bench(asked)
    assert document["settings"]["quantize"] == "int8" and document["differences"] == []
    assert asked.settings().key != replace(asked, quantize=None).settings().key
    with pytest.raises(UsageError, match="did you mean 'int8'"):
        run_bench(replace(asked, quantize="int88"))


def test_what_cannot_be_rounded_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="did you mean 'int8'"):
        LLM(str(folder), "plain", quantize="int88")
    with pytest.raises(UsageError, match="native executor"):
        LLM(str(folder), "plain", dtype="fp32", device="cpu", quantize="int4")
    write_gguf(tmp_path / "model.gguf", "llama")
    with pytest.raises(UsageError, match="GGUF file, quantised as it is"):
        LLM(str(tmp_path / "model.gguf"), "plain", quantize="int4")
