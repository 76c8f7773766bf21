"""Which config.json our decoder runs, and what it reads out of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.models import SHAPES, ModelConfig, runs_natively, shape, why_foreign

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "eos_token_id": [128001, 128008, 128009],
    "bos_token_id": 128000,
}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_old_and_new_rope_spellings_agree() -> None:
    old = LLAMA | {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **SCALING}}
    new = LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **SCALING}}
    assert ModelConfig.from_hf(old) == ModelConfig.from_hf(new) == _with_bos("llama-8b")


def _with_bos(name: str) -> ModelConfig:
    from dataclasses import replace

    return replace(shape(name), bos_token_id=128000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"num_local_experts": 8}, "experts"),
        ({"attention_bias": True}, "biased attention"),
        ({"mlp_bias": True}, "biased MLP"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window of 4096"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding attention"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_foreign_models_are_told_why(change: dict[str, Any], reason: str) -> None:
    assert reason in str(why_foreign(LLAMA | change))
    with pytest.raises(UsageError, match=reason):
        ModelConfig.from_hf(LLAMA | change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 131072},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096},
        {"model_type": "qwen3", "head_dim": 128},
    ],
)
def test_native_models(change: dict[str, Any]) -> None:
    assert runs_natively(LLAMA | change)


def test_generation_config_tells_the_stop_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 5}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (5,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (5, 6)


def test_bad_config_files(tmp_path: Path) -> None:
    with pytest.raises(ForedraftError, match="does not exist"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ForedraftError, match="cannot be read as JSON"):
        ModelConfig.from_folder(tmp_path)
    lacking = {k: v for k, v in LLAMA.items() if k != "hidden_size"}
    with pytest.raises(ForedraftError, match="lacks 'hidden_size'"):
        ModelConfig.from_hf(lacking)
    with pytest.raises(UsageError, match="cannot share"):
        ModelConfig.from_hf(LLAMA | {"num_key_value_heads": 5})


def test_parameter_counts_of_known_shapes() -> None:
    millions = {name: round(config.num_parameters / 1e6) for name, config in SHAPES.items()}
    known = {"llama-1b": 1236, "llama-8b": 8030, "llama-70b": 70554, "smollm2": 135, "qwen-1.5b": 1544, "tiny": 0}
    assert millions == known
    with pytest.raises(UsageError, match="did you mean 'llama-8b'"):
        shape("llama-8")
