"""Well-known public heads: their configs as published, and the names and shapes of their tensors.

Configs are those of the hub's pages where these were at hand; where not, a comment says what was taken instead. Names
are those of the code that writes such files; that names and shapes are right is seen by the sizes of the published
files, which `size` holds in GB, as the hub rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foredraft.models import ModelConfig

Shapes = dict[str, tuple[int, ...]]
LLAMA_8B = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, tied_head=False)
LLAMA2_7B = ModelConfig("llama", 32000, 4096, 32, 32, 32, 128, 11008, tied_head=False)  # Vicuna's too
LLAMA2_13B = ModelConfig("llama", 32000, 5120, 40, 40, 40, 128, 13824, tied_head=False)
LLAMA2_70B = ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, tied_head=False)
QWEN3_32B = ModelConfig("qwen3", 151936, 5120, 64, 64, 8, 128, 25600, tied_head=False, qk_norm=True)
QWEN3_8B = ModelConfig("qwen3", 151936, 4096, 36, 32, 8, 128, 12288, tied_head=False, qk_norm=True)


@dataclass(frozen=True)
class Public:
    kind: str  # ours
    target: ModelConfig
    config: dict[str, Any]
    shapes: Shapes
    size: float = 0.0  # GB of the published weights; 0 = not known
    width: int = 2  # bytes of a number
    taps: tuple[int, ...] = (-1,)
    layers: int = 1
    length: int = 5


def layer(place: str, hidden: int, heads: int, kv: int, dim: int, inner: int, first: int = 0) -> Shapes:
    """An ordinary layer, the norm before its attention left out; first: width that its attention reads."""
    first = first or hidden
    rows = {"q": heads * dim, "k": kv * dim, "v": kv * dim}
    return {
        **{f"{place}self_attn.{name}_proj.weight": (count, first) for name, count in rows.items()},
        f"{place}self_attn.o_proj.weight": (hidden, heads * dim),
        f"{place}mlp.gate_proj.weight": (inner, hidden),
        f"{place}mlp.up_proj.weight": (inner, hidden),
        f"{place}mlp.down_proj.weight": (hidden, inner),
        f"{place}post_attention_layernorm.weight": (hidden,),
    }


def eagle(config: dict[str, Any], heads: int, kv: int, bias: bool = True) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    found = {"embed_tokens.weight": (config["vocab_size"], hidden), "fc.weight": (hidden, 2 * hidden)}
    found |= {"fc.bias": (hidden,)} if bias else {}
    return found | layer("layers.0.", hidden, heads, kv, hidden // heads, inner)


def eagle3(config: dict[str, Any], place: str = "midlayer.", taps: int = 3, dim: int = 0) -> Shapes:
    hidden, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    dim = dim or hidden // heads
    words = config["draft_vocab_size"]
    return {
        **layer(place, hidden, heads, kv, dim, config["intermediate_size"], 2 * hidden),
        f"{place}input_layernorm.weight": (hidden,),
        f"{place}hidden_norm.weight": (hidden,),
        "fc.weight": (hidden, taps * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (words, hidden),
        "d2t": (words,),
        "t2d": (config["vocab_size"],),
    }


def mlp_speculator(config: dict[str, Any]) -> Shapes:
    wide, inner, vocab = config["emb_dim"], config["inner_dim"], config["vocab_size"]
    found: Shapes = {}
    for i in range(config["n_predict"]):
        if i == 0 or not config.get("tie_weights"):
            found |= {f"speculator.{name}.{i}.weight": (vocab, inner) for name in ("emb", "head")}
            found |= {f"speculator.ln.{i}.{name}": (inner,) for name in ("weight", "bias")}
        if i < 2 or not config.get("tie_weights"):
            found[f"speculator.proj.{i}.weight"] = (inner, inner if i else wide)
    return found


def medusa(count: int, hidden: int, vocab: int, form: str) -> Shapes:
    own = ("{}.0.linear.weight", "{}.0.linear.bias", "{}.1.weight")
    vllm = ("blocks.{}.layers.0.weight", "", "lm_heads.{}.weight")
    names = own if form == "medusa" else vllm
    shapes = ((hidden, hidden), (hidden,), (vocab, hidden))
    return {n.format(i): s for i in range(count) for n, s in zip(names, shapes, strict=True) if n}


_SILU = {"hidden_act": "silu", "model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
_LLAMA = _SILU | {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "vocab_size": 128256, "max_position_embeddings": 2048,
    "pad_token_id": 0, "torch_dtype": "float16",
}  # fmt: skip
_LLAMA3 = _LLAMA | {"draft_vocab_size": 32000}
_LLAMA2 = _SILU | {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": None, "vocab_size": 32000,
}  # fmt: skip
_LLAMA2_13B = _LLAMA2 | {"hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40,
                         "num_key_value_heads": 40, "rms_norm_eps": 1e-05}  # fmt: skip
_VICUNA3_13B = {k: v for k, v in _LLAMA2_13B.items() if k != "num_key_value_heads"} | {"draft_vocab_size": 32000}
_QWEN3 = _SILU | {
    "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False, "head_dim": 128, "hidden_size": 5120,
    "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
    "vocab_size": 151936, "draft_vocab_size": 32000,
}  # fmt: skip
_GREEDY = {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1}
_CONVERTED = {
    "architectures": ["Eagle3Speculator"], "draft_vocab_size": 32000, "norm_before_residual": False,
    "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [_GREEDY]},
    "speculators_model_type": "eagle3", "target_hidden_size": None,
    "transformer_layer_config": {k: v for k, v in _LLAMA.items() if k != "architectures"}
    | {"head_dim": 128, "attention_bias": False, "rope_scaling": None, "rope_theta": 10000.0},
}  # fmt: skip
_PARALLEL = {
    "architectures": ["PEagleDraftModel"], "draft_vocab_size": 32000, "mask_token_id": 151669,
    "speculators_config": {"algorithm": "peagle", "proposal_methods": [_GREEDY | {"speculative_tokens": 8}]},
    "speculators_model_type": "peagle", "eagle_aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
    "transformer_layer_config": _SILU | {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "vocab_size": 151936,
        "num_hidden_layers": 4,
    },
}  # fmt: skip
_IBM = {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"}
_IBM_8B = _IBM | {"emb_dim": 4096, "inner_dim": 3072, "n_candidates": 5, "n_predict": 4, "vocab_size": 128256}
_IBM_70B = _IBM | {"emb_dim": 8192, "inner_dim": 8192, "n_predict": 4, "scale_input": True, "tie_weights": True,
                   "vocab_size": 32000}  # fmt: skip
_MEDUSA = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}


def _qk_norms(place: str) -> Shapes:
    return {f"{place}self_attn.{name}_norm.weight": (128,) for name in "qk"}


def _parallel() -> Shapes:
    flat = _PARALLEL | _PARALLEL["transformer_layer_config"]  # type: ignore[operator]
    found = eagle3(flat, "layers.0.", 5) | _qk_norms("layers.0.")
    for i in range(1, 4):
        found |= layer(f"layers.{i}.", 4096, 32, 8, 128, 12288) | _qk_norms(f"layers.{i}.")
        found[f"layers.{i}.input_layernorm.weight"] = (4096,)
    return found | {"embed_tokens.weight": (151936, 4096), "mask_hidden": (1, 1, 5 * 4096)}


HEADS = {
    # The config is that of its EAGLE-3 sibling without the draft vocabulary.
    "yuhuili/EAGLE-LLaMA3-Instruct-8B": Public("eagle", LLAMA_8B, _LLAMA, eagle(_LLAMA, 32, 8, False), 1.55),
    "yuhuili/EAGLE-llama2-chat-7B": Public("eagle", LLAMA2_7B, _LLAMA2, eagle(_LLAMA2, 32, 32), 1.47, 4),
    "yuhuili/EAGLE-llama2-chat-13B": Public("eagle", LLAMA2_13B, _LLAMA2_13B, eagle(_LLAMA2_13B, 40, 40), 2.13, 4),
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": Public(
        "eagle3", LLAMA_8B, _LLAMA3, eagle3(_LLAMA3), 0.85, taps=(2, 16, 29)
    ),
    # The config is that of the EAGLE head of the same model.
    "yuhuili/EAGLE3-Vicuna1.3-13B": Public(
        "eagle3", LLAMA2_13B, _VICUNA3_13B, eagle3(_LLAMA2_13B | {"draft_vocab_size": 32000}), 1.28, taps=(2, 20, 37)
    ),
    "nm-testing/EAGLE3-LLaMA3.1-Instruct-8B-converted": Public(
        "eagle3", LLAMA_8B, _CONVERTED, eagle3(_LLAMA3, "layers.0."), taps=(2, 16, 29)
    ),
    "SpecForge qwen3-32b-eagle3": Public("eagle3", QWEN3_32B, _QWEN3, eagle3(_QWEN3, dim=128), taps=(2, 32, 61)),
    # The classes of speculators 0.9.0, with the five taps of RedHatAI/Qwen3-8B-speculator.peagle; four layers as AWS's
    # heads have, and the mask token, are assumed.
    "P-EAGLE of speculators, Qwen3-8B": Public(
        "p-eagle", QWEN3_8B, _PARALLEL, _parallel(), taps=(2, 10, 18, 26, 34), layers=4, length=8
    ),
    "FasterDecoding/medusa-vicuna-7b-v1.3": Public(
        "medusa", LLAMA2_7B, _MEDUSA, medusa(5, 4096, 32000, "medusa"), 1.48, length=5
    ),
    # The config is that of the head that it was made of.
    "abhigoyal/vllm-medusa-vicuna-7b-v1.3": Public(
        "medusa", LLAMA2_7B, {"architectures": ["MedusaModel"], "model_type": "medusa"} | _MEDUSA,
        medusa(5, 4096, 32000, "vllm"), 1.48, length=5,
    ),
    "ibm-fms/llama3-8b-accelerator": Public(
        "mlp-speculator", LLAMA_8B, _IBM_8B, mlp_speculator(_IBM_8B), 6.39, length=4
    ),
    # Inner width and depths by the size of its file.
    "ibm-fms/llama-13b-accelerator": Public(
        "mlp-speculator", LLAMA2_13B,
        _IBM_8B | {"emb_dim": 5120, "inner_dim": 4096, "n_predict": 3, "vocab_size": 32000},
        mlp_speculator(_IBM_8B | {"emb_dim": 5120, "inner_dim": 4096, "n_predict": 3, "vocab_size": 32000}), 1.68,
        length=3,
    ),
    "ibm-fms/llama2-70b-accelerator": Public(
        "mlp-speculator", LLAMA2_70B, _IBM_70B, mlp_speculator(_IBM_70B), length=4
    ),
}  # fmt: skip
