"""Small GGUF files written from random Hugging Face models, the way llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from foredraft.models.load.weight_names import GGUF_LAYER_NAMES, GGUF_NAMES

SHAPE: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}
TEMPLATE = "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"


def write_gguf(
    path: Path, architecture: str, tied: bool = False, rope_factors: torch.Tensor | None = None, head_dim: int = 16
) -> Any:
    """Write a random model of an architecture; returns the Hugging Face model it was made from."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(4)
    config = AutoConfig.for_model(architecture, tie_word_embeddings=tied, **SHAPE | {"head_dim": head_dim})
    model = AutoModelForCausalLM.from_config(config).eval()
    tensors = {name: value for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    writer = _writer(path, architecture, config)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.numpy())
    for name, value in tensors.items():
        _add_tensor(writer, architecture, name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _writer(path: Path, architecture: str, config: Any) -> Any:
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    pieces, kinds = _pieces()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    return writer


def _pieces() -> tuple[list[str], list[int]]:
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = [*sorted(ByteLevel.alphabet()), "he", "<|start|>", "<|end|>", "ll", "hell"]
    kinds = [3 if piece.startswith("<|") else 1 for piece in pieces]
    padding = SHAPE["vocab_size"] - len(pieces)
    return pieces + [f"[PAD{i}]" for i in range(padding)], kinds + [5] * padding


def _add_tensor(writer: Any, architecture: str, name: str, value: torch.Tensor) -> None:
    import gguf

    if architecture == "llama" and (".q_proj" in name or ".k_proj" in name):
        heads = SHAPE["num_attention_heads"] if ".q_proj" in name else SHAPE["num_key_value_heads"]
        halves = value.reshape(heads, 2, -1, *value.shape[1:])  # [H, 2, D / 2, d]
        value = halves.transpose(1, 2).reshape(value.shape)
    stem, _, kind = name.rpartition(".")
    names = {hf: ours for ours, hf in GGUF_NAMES.items()}
    if stem not in names:
        _, _, index, part = stem.split(".", 3)
        names = {hf: f"blk.{index}.{ours}" for ours, hf in GGUF_LAYER_NAMES.items()}
        stem = part
    data = np.ascontiguousarray(value.numpy())
    if value.ndim == 1:
        writer.add_tensor(f"{names[stem]}.{kind}", data)
        return
    packed = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(f"{names[stem]}.{kind}", gguf.quants.quantize(data, packed), raw_dtype=packed)
