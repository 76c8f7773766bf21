"""Tiny models and tokenizers that the tests of bridges share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.runtime.kit import SMALL

VOCAB = 64
END = "</s>"
SIZES: dict[str, Any] = SMALL | {
    "vocab_size": VOCAB,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": 0,
}


def word_tokenizer(words: list[str]) -> Tokenizer:
    """One token a word; token 0 ends a text."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([END, *words])}, unk_token=END))
    made.pre_tokenizer, made.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    return made


def tiny_model(family: str = "llama", seed: int = 0, **changed: Any) -> Any:
    """A random Hugging Face model whose greedy texts turn in circles, so that drafts come true."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(SIZES | changed))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1) * 1.0)
    return model


def fast_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    backend = word_tokenizer([*(f"w{i}" for i in range(1, VOCAB - 1)), "abcdef"])  # stop strings are tried on that
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END)


def save_tiny(folder: Path, **changed: Any) -> Path:
    """A whole model folder."""
    tiny_model(**changed).save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder
