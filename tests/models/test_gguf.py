"""GGUF conversion: bit-equal to transformers' own reader, atomic, and clear about files it cannot read."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foredraft.errors import ForedraftError
from foredraft.models import ModelConfig, Tokenizer, load_decoder, source_file
from foredraft.models.layers.rope import frequencies
from foredraft.models.load.gguf import GgufFile, convert_gguf, hf_config, open_gguf

from .conftest import forward
from .ggufs import TEMPLATE, write_gguf


def transformers_reads(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_bit_equal_to_transformers(tmp_path: Path, architecture: str, tied: bool) -> None:
    path = tmp_path / "model.gguf"
    head_dim = 128 if architecture == "qwen3" else 16  # transformers takes its default, whatever the file says
    original = write_gguf(path, architecture, tied, head_dim=head_dim)
    seen: list[tuple[str, int, int]] = []
    folder = convert_gguf(path, tmp_path / "out", lambda *state: seen.append(state))
    expected, ours = transformers_reads(path).state_dict(), load_file(folder / "model.safetensors")
    assert set(ours) == set(expected) - ({"lm_head.weight"} if tied else set())
    assert all(torch.equal(ours[name], expected[name]) for name in ours)
    ids = torch.arange(40)
    with torch.no_grad():
        logits = forward(load_decoder(folder), ids)
        assert (logits - original(ids[None]).logits[0]).abs().max() < 0.05  # what 8 bits cost
        original.load_state_dict(ours, strict=not tied)
        assert (logits - original(ids[None]).logits[0]).abs().max() < 1e-4
    assert seen[0][1] == 0 and seen[-1][1] == seen[-1][2]


def test_tokenizer_and_stop_tokens_come_along(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama")
    folder = convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_folder(folder)
    text = tokenizer.chat([{"role": "user", "content": "hello 12"}])
    assert text == "<|start|>user\nhello 12<|end|>\n" and tokenizer.chat_template == TEMPLATE
    ids = tokenizer.encode(text)
    assert ids[0] == 257 and 258 in ids and 260 in ids, "both special tokens and the merged 'hell'"
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.eos_token_ids == ModelConfig.from_folder(folder).eos_token_ids == (258,)


def test_llama3_rope_factors_are_recovered(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192}
    write_gguf(tmp_path / "plain.gguf", "llama")
    plain = ModelConfig.from_folder(convert_gguf(tmp_path / "plain.gguf", tmp_path / "plain"))
    raw = json.loads((tmp_path / "plain" / "config.json").read_text()) | {"rope_scaling": scaling}
    factors = frequencies(plain) / frequencies(ModelConfig.from_hf(raw))
    write_gguf(tmp_path / "scaled.gguf", "llama", rope_factors=factors)
    converted = ModelConfig.from_folder(convert_gguf(tmp_path / "scaled.gguf", tmp_path / "scaled"))
    assert converted.rope_scaling == scaling
    write_gguf(tmp_path / "strange.gguf", "llama", rope_factors=factors.flip(0))
    with pytest.raises(ForedraftError, match="not those of Llama 3"):
        convert_gguf(tmp_path / "strange.gguf", tmp_path / "strange")


def opened(path: Path, **changed: Any) -> GgufFile:
    """A small file with other metadata."""
    write_gguf(path / "model.gguf", "llama")
    file = open_gguf(path / "model.gguf")
    return replace(file, metadata=file.metadata | changed)


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_rope_factor_by_itself_scales_linearly(tmp_path: Path, key: str) -> None:
    """As llama.cpp reads it; older files have the second key."""
    scaled = opened(tmp_path, **{f"llama.{key}": 4.0})
    assert hf_config(scaled)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    for kind, factor in (("none", 4.0), ("linear", 1.0)):
        plain = opened(tmp_path, **{f"llama.{key}": factor, "llama.rope.scaling.type": kind})
        assert "rope_scaling" not in hf_config(plain)


def test_the_token_that_ends_a_turn_ends_the_text(tmp_path: Path) -> None:
    """Files of tuned models may name the base model's end of text alone."""
    assert hf_config(opened(tmp_path, **{"tokenizer.ggml.eos_token_id": 257}))["eos_token_id"] == [257, 258]
    untuned = {"tokenizer.ggml.eos_token_id": 257, "tokenizer.chat_template": ""}
    assert hf_config(opened(tmp_path, **untuned))["eos_token_id"] == 257


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama")

    def interrupt(description: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "cache" / "out", interrupt)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("keep", [10, 3000, -500])
def test_truncated_files(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ForedraftError, match="truncated or no GGUF file") as error:
        convert_gguf(path, tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_other_architectures_and_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ForedraftError, match="'mamba' is not supported; supported: llama, qwen2, qwen3"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ForedraftError, match=r"pip install foredraft\[gguf\]"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")


@pytest.mark.slow
def test_default_model_is_bit_equal_to_transformers(smollm2: Path) -> None:
    expected = transformers_reads(source_file("smollm2")).state_dict()
    ours = load_file(smollm2 / "model.safetensors")
    assert len(ours) == 272 and all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())
