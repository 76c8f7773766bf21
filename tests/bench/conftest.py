"""A tiny model in a folder of its own: random weights, a byte tokenizer, a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from foredraft.models import ModelConfig, random_decoder
from foredraft.models.load.weight_names import slots

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
VOCABULARY = 256 + len(SPECIAL)
CONFIG = ModelConfig("llama", VOCABULARY, 32, 3, 4, 2, 8, 64, max_position=640, eos_token_ids=(256,))
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that loads in milliseconds."""
    folder = tmp_path_factory.mktemp("tiny")
    write_weights(folder)
    write_tokenizer(folder)
    return folder


def write_weights(folder: Path) -> None:
    decoder = random_decoder(CONFIG, seed=3)
    with torch.no_grad():
        decoder.embedding.mul_(8)  # sharper distributions: no near-ties, and text that repeats itself now and then
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    tensors = {
        name: parameters[slot.parameter][slot.start : slot.stop].detach().clone().contiguous()
        for name, slot in slots(CONFIG).items()
    }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 640,
        "tie_word_embeddings": False, "eos_token_id": 256,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
