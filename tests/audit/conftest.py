"""Tiny models in folders: one with the default model's tokenizer, and one of sixteen tokens for transformers alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.models import resolve


def write_model(folder: Path, vocab: int, layers: int = 2, spread: float = 0.02) -> Path:
    """Random weights; a larger `spread` makes distributions less flat."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=2, bos_token_id=1, initializer_range=spread,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("tiny"), 49152)
    for file in resolve("smollm2").glob("*token*"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="session")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("sixteen"), 16, spread=0.3)
