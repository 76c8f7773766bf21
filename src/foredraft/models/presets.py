"""Named model shapes, for benchmarks and tests that need sizes and not weights."""

from __future__ import annotations

from ..errors import unknown_name
from .config import ModelConfig

_LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _llama3(layers: int, hidden: int, heads: int, inner: int, factor: float = 8.0, tied: bool = False) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=128256,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=64 if hidden == 2048 else 128,
        intermediate_size=inner,
        rope_theta=5e5,
        rope_scaling=_LLAMA31 | {"factor": factor},
        max_position=131072,
        tied_head=tied,
        eos_token_ids=(128001, 128008, 128009),
    )


SHAPES: dict[str, ModelConfig] = {
    "llama-1b": _llama3(16, 2048, 32, 8192, factor=32.0, tied=True),
    "llama-8b": _llama3(32, 4096, 32, 14336),
    "llama-70b": _llama3(80, 8192, 64, 28672),
    "smollm2": ModelConfig(
        "llama", 49152, 576, 30, 9, 3, 64, 1536, 1e-5, 1e5, None, 8192, tied_head=True, eos_token_ids=(2,)
    ),
    "qwen-1.5b": ModelConfig(
        "qwen2", 151936, 1536, 28, 12, 2, 128, 8960, 1e-6, 1e6, None, 32768, tied_head=True, qkv_bias=True
    ),
    "tiny": ModelConfig("llama", 64, 32, 2, 4, 2, 8, 64, max_position=256, eos_token_ids=(2,)),
}


def shape(name: str) -> ModelConfig:
    """The config of a named shape."""
    if name not in SHAPES:
        raise unknown_name("model shape", name, SHAPES)
    return SHAPES[name]
