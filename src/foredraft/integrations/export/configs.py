"""config.json of exported heads, by engine. The traps of each engine are where its key is written."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from ...models import ModelConfig
from ...models.heads import HeadSpec

FAMILY_CLASS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
TAPS = 3  # what EAGLE-3 reads; llama.cpp takes no other number, vLLM asks for it


def sizes(config: ModelConfig, dtype: str, vocab_size: int) -> dict[str, Any]:
    """What every config says of a head of Llama's layers."""
    rope = {"rope_type": "default"} if config.rope_scaling is None else dict(config.rope_scaling)
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "rope_parameters": rope | {"rope_theta": config.rope_theta},
        "attention_bias": config.qkv_bias,
        "torch_dtype": dtype,
        "eos_token_id": list(config.eos_token_ids) or None,
        "bos_token_id": config.bos_token_id,
    }


def eagle3_config(config: ModelConfig, spec: HeadSpec, dtype: str) -> dict[str, Any]:
    """One config for vLLM, SGLang and llama.cpp's converter.

    vLLM and llama.cpp read the ids at the top level, where k is the stream that enters layer k, as our taps are; SGLang
    reads the nested ones and adds 1. SGLang takes the embedding for the head where embeddings are called tied.
    """
    if len(spec.taps) != TAPS:
        raise UsageError(f"engines read EAGLE-3 heads of {TAPS} taps, and this one has {len(spec.taps)}; train another")
    return sizes(config, dtype, spec.target.vocab_size) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": spec.draft_vocab_size,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(spec.taps),
        "eagle_config": nested_ids(spec),
    }


def nested_ids(spec: HeadSpec) -> dict[str, Any]:
    """SGLang's own defaults are (2, L // 2, L - 3): these are left to it."""
    layers, own = spec.target.num_layers, {"use_aux_hidden_state": True}
    if spec.taps == (2, layers // 2, layers - 3):
        return own
    return own | {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in spec.taps]}


def speculators_config(config: ModelConfig, spec: HeadSpec, dtype: str, verifier: str) -> dict[str, Any]:
    """EAGLE-3 in the schema of `speculators`, which vLLM serves without further options and SGLang does not read."""
    flat = eagle3_config(config, spec, dtype)
    proposal = {
        "proposal_type": "greedy", "speculative_tokens": spec.length, "verifier_accept_k": 1, "accept_tolerance": 0.0,
    }  # fmt: skip
    layer = {key: value for key, value in flat.items() if key in sizes(config, dtype, 0) and key != "torch_dtype"}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": spec.draft_vocab_size,
        "norm_before_residual": False,  # vLLM's loader would take true
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(spec.taps),
        "transformer_layer_config": layer | {"tie_word_embeddings": False, "vocab_size": spec.target.vocab_size},
        "torch_dtype": dtype,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": [FAMILY_CLASS[config.family]]},
        },
    }


def eagle_config(config: ModelConfig, spec: HeadSpec, dtype: str, engine: str) -> dict[str, Any]:
    """EAGLE-1 and -2. The scale of the stream is in the epsilon of its norms too: eps (s x) = s^2 eps (x)."""
    scale = float(spec.extra.get("scale", 1.0))
    name = "LlamaForCausalLMEagle" if engine == "sglang" else "LlamaForCausalLM"
    return sizes(config, dtype, spec.target.vocab_size) | {
        "architectures": [name],
        "num_hidden_layers": 1,
        "rms_norm_eps": config.norm_eps * scale**2,
        "tie_word_embeddings": False,
    }


def language_config(config: ModelConfig, spec: HeadSpec, dtype: str, tied: bool) -> dict[str, Any]:
    """An ordinary small model of the target's family."""
    own = {"model_type": config.family, "architectures": [FAMILY_CLASS[config.family]], "tie_word_embeddings": tied}
    return sizes(config, dtype, spec.target.vocab_size) | own | {"num_hidden_layers": spec.layers}
