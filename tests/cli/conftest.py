"""A tiny model in a folder: random weights, the default model's real tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from foredraft.models import resolve


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=2, bos_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    source = resolve("smollm2")
    for file in source.glob("*token*"):
        shutil.copy(file, folder)
    if (source / "chat_template.jinja").exists():
        shutil.copy(source / "chat_template.jinja", folder)
    return folder


@pytest.fixture
def poisoned(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with a NaN in its last norm."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "poisoned"
    shutil.copytree(tiny, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def stranger(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with another tokenizer."""
    folder = tmp_path / "stranger"
    shutil.copytree(tiny, folder)
    file = folder / "tokenizer.json"
    table = json.loads(file.read_text(encoding="utf-8"))
    vocab = table["model"]["vocab"]
    first, second = list(vocab)[1000:1002]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(table), encoding="utf-8")
    return folder
