"""The shape of a decoder: `ModelConfig`, read from a Hugging Face config.json.

It knows some families (`FAMILIES`) and says of any other model why our decoder cannot run it.
It refuses to know weights and where files come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ForedraftError, UsageError
from .quantisation.schemes import why_unreadable

EXPERTS = ("mixtral", "qwen3_moe")  # families whose MLPs are mixtures of experts
GEMMA = "gemma3_text"
FAMILIES = (GEMMA, "llama", "mistral", "phi3", "qwen2", "qwen3", *EXPERTS)
SLIDING = ("mistral", "mixtral", "phi3")  # families that heed `sliding_window` without being told to
ROPE_TYPES = ("default", "linear", "llama3")
QKV_BIAS = {"qwen2"}  # families whose q, k and v projections always carry a bias
QK_NORM = {"qwen3", "qwen3_moe", GEMMA}  # families that normalise every q and k head


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the decoder needs to know of a model. Sizes are checked at construction."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None  # None = the plain rotation
    max_position: int = 2048  # positions 0 .. max_position - 1 exist
    tied_head: bool = False  # the embedding matrix is the LM head too
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int, ...] = ()  # by layer: places that a row sees, itself included; 0 = all. Empty = all everywhere
    local_theta: float = 10000.0  # of layers with a window
    embed_scale: float = 1.0
    query_scale: float = 1.0  # of normed queries, beside attention's own 1 / sqrt(D)
    num_experts: int = 0  # 0 = one MLP for all; else `intermediate_size` is that of one expert
    experts_per_token: int = 0
    norm_routing: bool = True  # whether the shares of a token's experts are made to sum to 1
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    draft_layers: int = 0  # after the others, for multi-token prediction: no part of the model itself

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise UsageError(f"model config: {name} is {getattr(self, name)}, it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(f"model config: {self.num_heads} heads cannot share {self.num_kv_heads} key/value heads")
        if self.head_dim % 2:
            raise UsageError(f"model config: head_dim is {self.head_dim}, rotary positions need an even one")

    @property
    def num_parameters(self) -> int:
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlps = max(1, self.num_experts) * 3 * self.intermediate_size + self.num_experts
        layer = attention + mlps * self.hidden_size + 2 * self.hidden_size
        vocabularies = 1 if self.tied_head else 2
        return self.num_layers * layer + vocabularies * self.vocab_size * self.hidden_size + self.hidden_size

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read the contents of a config.json; UsageError where our decoder could not run that model."""
        reason = why_foreign(raw)
        if reason is not None:
            raise UsageError(f"the built-in decoder cannot run this model: {reason}")
        try:
            return _read(raw)
        except KeyError as error:
            raise ForedraftError(f"config.json lacks {error}; the model folder is incomplete") from None
        except TypeError as error:
            raise ForedraftError(f"config.json is malformed: {error}") from None

    @classmethod
    def from_folder(cls, folder: Path | str) -> ModelConfig:
        """Read the config of a model folder."""
        return cls.from_hf(read_config(folder))


def read_config(folder: Path | str) -> dict[str, Any]:
    """config.json of a model folder; the stop tokens of generation_config.json win, as in transformers."""
    raw = read_json(Path(folder) / "config.json")
    generation = Path(folder) / "generation_config.json"
    stops = read_json(generation).get("eos_token_id") if generation.exists() else None
    return raw if stops is None else raw | {"eos_token_id": stops}


def why_foreign(raw: Mapping[str, Any]) -> str | None:
    """Why our decoder cannot run the model of this config.json; None = it can."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        return f"model type {family!r} is not one of {', '.join(FAMILIES)}"
    rope, gemma = _rope(raw), family == GEMMA
    activation = raw.get("hidden_activation" if gemma else "hidden_act", "gelu_pytorch_tanh" if gemma else "silu")
    sliding = raw.get("sliding_window") if raw.get("use_sliding_window", family in SLIDING) else None
    checks = (
        (activation in (("gelu_pytorch_tanh",) if gemma else ("silu", "swish")), f"activation {activation!r}"),
        (rope["rope_type"] in ROPE_TYPES, f"rope type {rope['rope_type']!r}"),
        (rope.get("partial_rotary_factor", 1.0) == 1.0, "partial rotary positions"),
        (family in EXPERTS or not (raw.get("num_experts") or raw.get("num_local_experts")), "mixture of experts"),
        (
            not raw.get("mlp_only_layers") and raw.get("decoder_sparse_step", 1) == 1,
            "layers without experts among others",
        ),
        (not raw.get("attention_bias") or family == "qwen2", "biased attention projections"),
        (not raw.get("mlp_bias"), "biased MLP"),
        (not sliding or sliding >= raw.get("max_position_embeddings", 0), f"sliding window of {sliding}"),
        (gemma or all(t == "full_attention" for t in raw.get("layer_types") or ()), "layers with sliding attention"),
        (not raw.get("attn_logit_softcapping") and not raw.get("final_logit_softcapping"), "softcapped logits"),
        (not raw.get("use_bidirectional_attention"), "bidirectional attention"),
    )
    return next((reason for ok, reason in checks if not ok), None) or why_unreadable(raw)


def runs_natively(raw: Mapping[str, Any]) -> bool:
    """Whether our decoder can run the model of this config.json (else its own Hugging Face code has to)."""
    return why_foreign(raw) is None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or a one-line error."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ForedraftError(f"{path} does not exist; is {path.parent} a Hugging Face model folder?") from None
    except (ValueError, OSError) as error:
        raise ForedraftError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ForedraftError(f"{path} holds a {type(value).__name__} where a JSON object belongs")
    return value


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Rope parameters in one form: transformers 5 writes `rope_parameters`, older files theta and scaling apart."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope = dict(rope.get("full_attention", rope))  # gemma3: by kind of layer
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope.setdefault("rope_theta", raw.get("rope_theta", 10000.0))
    rope.setdefault("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    return rope


def _gemma(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw["model_type"] != GEMMA:
        return {}
    window, local = int(raw["sliding_window"]), dict(raw.get("rope_parameters") or {}).get("sliding_attention") or {}
    dim = int(raw["head_dim"])
    return {
        "windows": tuple(window if kind == "sliding_attention" else 0 for kind in _layer_types(raw)),
        "local_theta": float(local.get("rope_theta") or raw.get("rope_local_base_freq", 10000.0)),
        "embed_scale": float(raw["hidden_size"]) ** 0.5,
        "query_scale": (dim / float(raw["query_pre_attn_scalar"])) ** 0.5,
    }


def _layer_types(raw: Mapping[str, Any]) -> list[str]:
    """The kind of each layer. Older files, Google's own among them, say only that every n-th one has no window."""
    every, layers = int(raw.get("sliding_window_pattern") or 6), int(raw["num_hidden_layers"])
    usual = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    return list(raw.get("layer_types") or usual)


def _experts(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw["model_type"] not in EXPERTS:
        return {}
    count = int(raw.get("num_local_experts") or raw["num_experts"])
    normed = raw["model_type"] == "mixtral" or bool(raw.get("norm_topk_prob", False))
    return {"num_experts": count, "experts_per_token": int(raw["num_experts_per_tok"]), "norm_routing": normed}


def _read(raw: Mapping[str, Any]) -> ModelConfig:
    family, heads, rope = str(raw["model_type"]), int(raw["num_attention_heads"]), _rope(raw)
    max_position = int(raw.get("max_position_embeddings", 2048))
    scaling = None
    if rope["rope_type"] != "default":
        scaling = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
        if scaling["rope_type"] == "llama3":
            scaling.setdefault("original_max_position_embeddings", max_position)
    eos = raw.get("eos_token_id")
    return ModelConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        intermediate_size=int(raw["moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope["rope_theta"]),
        rope_scaling=scaling,
        max_position=max_position,
        tied_head=bool(raw.get("tie_word_embeddings", family == GEMMA)),
        qkv_bias=family in QKV_BIAS,
        qk_norm=family in QK_NORM,
        **_experts(raw),
        **_gemma(raw),
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),),
        bos_token_id=raw.get("bos_token_id"),
        draft_layers=int(raw.get("num_nextn_predict_layers") or 0),
    )
