"""Exported heads as GGUF files for llama.cpp: `eagle3`, or an ordinary model of the target's architecture.

The tokenizer is copied from the target's GGUF file, key by key. q and k lie in the order of paired channels there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ForedraftError, UsageError
from ...models import ModelConfig
from ...models.heads import HeadSpec
from ...models.load.weight_names import GGUF_LAYER_NAMES, GGUF_NAMES
from .folds import Tensors

STORAGES = ("q8_0", "f16", "f32")
BLOCK = 32  # weights that share a scale in q8_0


def write_eagle3(path: Path, tensors: Tensors, config: ModelConfig, spec: HeadSpec, source: Path, storage: str) -> None:
    """An EAGLE-3 head; the ids of its words are absolute here."""
    if config.qkv_bias:
        raise UsageError("llama.cpp's eagle3 reads no biases of q, k and v, and heads of qwen2 models have them")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    writer = _writer(path, "eagle3", config, source, 1, spec.target.vocab_size)
    writer.add_array("eagle3.target_layers", [int(tap) for tap in spec.taps])
    writer.add_uint32("eagle3.target_hidden_size", spec.target.hidden_size)
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", False)
    for name, value in tensors.items():
        if name not in ("d2t", "t2d"):
            _add(writer, eagle3_name(name), _ordered(name, value, config), storage)
    writer.add_tensor("d2t", ids.to(torch.int64).numpy())
    _close(writer)


def write_language(
    path: Path, tensors: Tensors, config: ModelConfig, spec: HeadSpec, source: Path, storage: str
) -> None:
    """An ordinary small model."""
    architecture = "llama" if config.family in ("llama", "mistral") else config.family
    writer = _writer(path, architecture, config, source, spec.layers, spec.target.vocab_size)
    paired = architecture == "llama"
    for name, value in tensors.items():
        rows = _ordered(name, value, config) if paired else value
        _add(writer, language_name(name), rows, storage)
    _close(writer)


def eagle3_name(name: str) -> str:
    """`midlayer.self_attn.q_proj.weight` -> `blk.0.attn_q.weight`; `lm_head.weight` -> `output.weight`."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("midlayer."):
        return f"{ {'fc': 'fc', 'norm': 'output_norm', 'lm_head': 'output'}[stem] }.{kind}"
    return f"blk.0.{_layer_name(stem.removeprefix('midlayer.'))}.{kind}"


def language_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    outer = {given: gguf for gguf, given in GGUF_NAMES.items()}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{_layer_name(part)}.{kind}"


def pairs_from_halves(rows: Tensor, heads: int) -> Tensor:
    """The order of q and k rows in GGUF files of Llama's kind; `weight_names.halves_from_pairs` is the way back."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])  # [H, 2, D / 2, d]
    return halves.transpose(1, 2).reshape(rows.shape)


def _layer_name(part: str) -> str:
    if part == "hidden_norm":
        return "attn_norm_2"
    return {given: gguf for gguf, given in GGUF_LAYER_NAMES.items()}[part]


def _ordered(name: str, value: Tensor, config: ModelConfig) -> Tensor:
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    found = next((count for part, count in heads.items() if f".{part}." in name), None)
    return value if found is None else pairs_from_halves(value, found)


def _writer(path: Path, architecture: str, config: ModelConfig, source: Path, layers: int, vocab_size: int) -> Any:
    """A file with sizes and the target's tokenizer."""
    gguf = _gguf()
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "block_count": layers,
        "context_length": config.max_position,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "vocab_size": vocab_size,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"{architecture}.{key}", number)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", config.rope_theta)
    _copy_tokenizer(writer, source)
    return writer


def _copy_tokenizer(writer: Any, source: Path) -> None:
    gguf = _gguf()
    fields = gguf.GGUFReader(source).fields
    copied = [field for name, field in fields.items() if name.startswith("tokenizer.")]
    if not copied:
        raise ForedraftError(f"{source} holds no tokenizer; name the target's own GGUF file with --target-gguf")
    for field in copied:
        kind, *inner = field.types
        writer.add_key_value(field.name, field.contents(), kind, inner[0] if inner else None)


def _add(writer: Any, name: str, value: Tensor, storage: str) -> None:
    gguf, array = _gguf(), value.numpy()
    if value.dim() < 2 or storage == "f32":
        writer.add_tensor(name, array)
    elif storage == "q8_0" and value.shape[1] % BLOCK == 0:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, array.astype("float16"))


def _close(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf() -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError:
        raise ForedraftError("GGUF files need another package: pip install foredraft[gguf]") from None
    return gguf
