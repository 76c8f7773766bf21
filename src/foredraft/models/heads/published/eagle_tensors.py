"""Published heads of the EAGLE family: their configs and tensors as `PublishedEagle` modules want them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....errors import UsageError
from ...config import ModelConfig
from ...decoder import FINAL
from ..base import HeadSpec, Identity

Found = tuple[HeadSpec, dict[str, Tensor]]
LENGTH, DEPTHS = 5, 8  # tokens to draft where a folder does not say: step by step, in one pass
MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
IDS = "eagle_aux_hidden_state_layer_ids"
LEFT_OUT = ("t2d", "rotary_emb.inv_freq", "verifier_", "lm_head_")


def eagle3_head(raw: Mapping[str, Any], given: dict[str, Tensor], config: ModelConfig, identity: Identity) -> Found:
    """EAGLE-3 with its own words; EAGLE-3.1's norms, and the schema of speculators."""
    flat = raw | raw.get("transformer_layer_config", {})
    _check_width(flat, config, raw.get("target_hidden_size"))
    tensors, taps = dict(given), layer_ids(raw, config.num_layers)
    sizes = _sizes(flat, config, given)
    weights = _layer(tensors, sizes, config.hidden_size * 2)
    layers = _deeper_layers(tensors, sizes, config.hidden_size, weights)
    weights["layers.0.attn_norm"] = tensors.pop("layers.0.hidden_norm.weight")
    weights["layers.0.token_norm"] = tensors.pop("layers.0.input_layernorm.weight")
    weights["norm"], weights["fc.weight"] = tensors.pop("norm.weight"), tensors.pop("fc.weight")
    rows = weights["head.weight"] = tensors.pop("lm_head.weight")
    weights["ids"] = draft_ids(tensors.pop("d2t", None), len(rows), config.vocab_size)
    if raw.get("norm_before_fc"):
        weights["joined_norm"] = tensors.pop("input_norm.weight")
    if raw.get("fc_norm"):
        weights["tap_norms"] = torch.stack([tensors.pop(f"fc_norm.{i}.weight") for i in range(len(taps))])
    extra = {
        "published": True,
        "config": sizes,
        "norm_before_residual": bool(raw.get("norm_before_residual", "speculators_model_type" in raw)),
        "norm_output": bool(raw.get("norm_output", False)),
        "norms": sorted({"joined_norm", "tap_norms"} & weights.keys()),
    }
    spec = HeadSpec("eagle3", identity, len(rows), taps, layers, _length(raw, LENGTH), extra)
    return _finished(spec, weights, tensors, config)


def parallel_head(raw: Mapping[str, Any], given: dict[str, Tensor], config: ModelConfig, identity: Identity) -> Found:
    """P-EAGLE: EAGLE-3 of several layers, with a token and a state that stand for what is not known yet."""
    tensors = dict(given)
    states = tensors.pop("mask_hidden").flatten()
    token = next((raw[key] for key in MASK_TOKENS if raw.get(key) is not None), None)
    if token is None:
        raise UsageError(f"its config names no token for places ahead; add one of {', '.join(MASK_TOKENS)}")
    if not 0 <= int(token) < config.vocab_size:
        raise UsageError(f"its token for places ahead, {token}, is none of the target's {config.vocab_size}")
    normed = {"norm_before_residual": raw.get("norm_before_residual", False)}  # unlike EAGLE-3 of speculators
    spec, weights = eagle3_head({**raw, **normed}, tensors, config, identity)
    if len(states) != len(spec.taps) * config.hidden_size:
        raise UsageError(f"mask_hidden has {len(states)} numbers where {len(spec.taps)} states are read")
    extra = spec.extra | {"mask_token": int(token)}
    spec = replace(spec, kind="p-eagle", length=_length(raw, DEPTHS), extra=extra)
    return spec, weights | {"mask_states": states}


def eagle_head(raw: Mapping[str, Any], given: dict[str, Tensor], config: ModelConfig, identity: Identity) -> Found:
    """EAGLE and EAGLE-2: the target's own output rows read its stream."""
    _check_width(raw, config, None)
    tensors = dict(given)
    tensors.pop("lm_head.weight", None)  # a copy of the target's
    sizes = _sizes(raw, config, given)
    if any(name.startswith("layers.1.") for name in tensors):
        raise UsageError("EAGLE heads of more than one layer are not read here; serve it with vLLM")
    weights = _layer(tensors, sizes, config.hidden_size)
    weights["fc.weight"] = tensors.pop("fc.weight")
    weights["fc.bias"] = tensors.pop("fc.bias", torch.zeros(config.hidden_size))
    weights["ids"] = torch.arange(config.vocab_size)
    extra = {"published": True, "config": sizes}
    spec = HeadSpec("eagle", identity, config.vocab_size, (FINAL,), 1, _length(raw, LENGTH), extra)
    return _finished(spec, weights, tensors, config)


def layer_ids(raw: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The taps: k at the top level is the stream that enters layer k; SGLang's nested ids are one less."""
    nested = (raw.get("eagle_config") or {}).get(IDS)
    top = raw.get(IDS)
    if top is not None and nested is not None and list(top) != [k + 1 for k in nested]:
        raise UsageError(f"layer ids {list(top)} and SGLang's {list(nested)} mean different layers; delete one of them")
    found = tuple(top) if top is not None else tuple(k + 1 for k in nested) if nested is not None else None
    taps = found or (2, layers // 2, layers - 3)
    if not all(0 <= tap <= layers for tap in taps) or len(taps) < 1:
        raise UsageError(f"layer ids {list(taps)} do not fit a target of {layers} layers; it belongs to another model")
    return tuple(int(tap) for tap in taps)


def draft_ids(d2t: Tensor | None, count: int, vocab: int) -> Tensor:
    """The target's id of each of its words; d2t holds how far they are apart."""
    if d2t is None and count != vocab:
        raise UsageError(f"it drafts {count} words of {vocab} and has no d2t that says which; export it again")
    ids = torch.arange(count) + (0 if d2t is None else d2t.to(torch.int64))
    if len(ids) != count or int(ids.min()) < 0 or int(ids.max()) >= vocab or len(set(ids.tolist())) < len(ids):
        raise UsageError(f"its d2t does not name {count} different tokens of {vocab}; it belongs to another model")
    return ids


def _layer(tensors: dict[str, Tensor], sizes: Mapping[str, Any], width: int) -> dict[str, Tensor]:
    """A decoder layer, in `tensors` the first; q, k, v and gate, up side by side."""
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    parts = [tensors.pop(f"{attention}{letter}_proj.weight") for letter in "qkv"]
    rows = [sizes["num_heads"] * sizes["head_dim"], *[sizes["num_kv_heads"] * sizes["head_dim"]] * 2]
    shapes = [list(part.shape) for part in parts]
    if shapes != [[count, width] for count in rows]:
        raise UsageError(f"q, k and v have shapes {shapes} where its config tells {rows} rows of {width}")
    found = {
        "layers.0.qkv.weight": torch.cat(parts),
        "layers.0.out.weight": tensors.pop(f"{attention}o_proj.weight"),
        "layers.0.mlp_norm": tensors.pop("layers.0.post_attention_layernorm.weight"),
        "layers.0.gate_up.weight": torch.cat([tensors.pop(f"{mlp}{name}_proj.weight") for name in ("gate", "up")]),
        "layers.0.down.weight": tensors.pop(f"{mlp}down_proj.weight"),
    }
    if sizes["qk_norm"]:
        found |= {f"layers.0.{letter}_norm": tensors.pop(f"{attention}{letter}_norm.weight") for letter in "qk"}
    if sizes["qkv_bias"]:
        found["layers.0.qkv.bias"] = torch.cat([tensors.pop(f"{attention}{letter}_proj.bias") for letter in "qkv"])
        if bool((tensors.pop(f"{attention}o_proj.bias", torch.zeros(1)) != 0).any()):
            raise UsageError("it has a bias of the attention's output, which our layers have not; serve it with vLLM")
    return found


def _deeper_layers(tensors: dict[str, Tensor], sizes: Mapping[str, Any], width: int, weights: dict[str, Tensor]) -> int:
    """Ordinary layers after the first, put to the weights; how many layers there are in all."""
    count = 1
    while any(name.startswith(f"layers.{count}.") for name in tensors):
        place = f"layers.{count}."
        own = {f"layers.0.{n.removeprefix(place)}": tensors.pop(n) for n in list(tensors) if n.startswith(place)}
        own.pop("layers.0.hidden_norm.weight", None)  # vLLM's layers all have one; only the first's is used
        found = _layer(own, sizes, width) | {"layers.0.attn_norm": own.pop("layers.0.input_layernorm.weight")}
        weights |= {name.replace("layers.0.", place): value for name, value in found.items()}
        tensors |= {name.replace("layers.0.", place): value for name, value in own.items()}  # nobody knows these
        if own:
            break
        count += 1
    return count


def _sizes(raw: Mapping[str, Any], config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What its layer has of its own; positions reach as far as the target's."""
    heads = int(raw.get("num_attention_heads", config.num_heads))
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise UsageError(f"rope type {kind!r} is not known here; serve it with vLLM")
    if "sliding_attention" in (raw.get("layer_types") or ()):
        raise UsageError("its layers read a window of the text only, which ours do not; serve it with vLLM")
    return {
        "num_heads": heads,
        "num_kv_heads": int(raw.get("num_key_value_heads") or heads),
        "head_dim": int(raw.get("head_dim") or config.hidden_size // heads),
        "intermediate_size": int(raw.get("intermediate_size", config.intermediate_size)),
        "norm_eps": float(raw.get("rms_norm_eps", config.norm_eps)),
        "rope_theta": float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        "rope_scaling": None if kind == "default" else dict(scaling) | {"rope_type": kind},
        # Qwen2's layers have biases that no config names.
        "qkv_bias": bool(raw.get("attention_bias", False)) or "layers.0.self_attn.q_proj.bias" in tensors,
        "qk_norm": "layers.0.self_attn.q_norm.weight" in tensors,  # layers of Qwen3, the default of speculators
    }


def _check_width(raw: Mapping[str, Any], config: ModelConfig, target: int | None) -> None:
    own, vocab = int(raw["hidden_size"]), raw.get("vocab_size")
    if own != config.hidden_size or target not in (None, config.hidden_size):
        raise UsageError(f"it was made for a model of width {target or own}, and this target's is {config.hidden_size}")
    if vocab is not None and int(vocab) != config.vocab_size:
        raise UsageError(f"it was made for a vocabulary of {vocab}, and this target's has {config.vocab_size} tokens")


def _finished(spec: HeadSpec, weights: dict[str, Tensor], left: dict[str, Tensor], config: ModelConfig) -> Found:
    """With an embedding of its own, if there is one; tensors that nobody knows are refused."""
    embedding = left.pop("embed_tokens.weight", None)
    if embedding is not None:
        if embedding.shape != (config.vocab_size, config.hidden_size):
            raise UsageError(f"its embedding is {list(embedding.shape)}; it belongs to another model")
        weights["embedding"] = embedding
    strange = [name for name in left if not any(word in name for word in LEFT_OUT)]
    if strange:
        raise UsageError(f"tensor {strange[0]} is of no {spec.kind} head that is known here")
    spec.extra["embedding"] = embedding is not None
    return spec, weights


def _length(raw: Mapping[str, Any], usual: int) -> int:
    methods = (raw.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return int(methods[0].get("speculative_tokens", usual))
