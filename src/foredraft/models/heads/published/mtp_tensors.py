"""Native multi-token-prediction layers: the drafter that comes inside a model's own folder.

One decoder layer reads the next token's embedding and the target's state, each normed, joined by a product; a norm and
the target's output rows follow. Three spellings are known, those of Qwen3-Next, of DeepSeek-V3 and of MiMo; layers that
are not of the target's own family (latent or gated attention, experts) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....errors import UsageError
from ...config import FAMILIES, ModelConfig
from ...decoder import FINAL
from ..base import HeadSpec, Identity

Found = tuple[HeadSpec, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Spelling:
    """Names of one publisher, after the prefix of the layer; and what the engines do with what comes out."""

    prefix: str  # a pattern
    layer: str  # between the prefix and the names of an ordinary layer
    token_norm: str
    state_norm: str
    product: str
    norm: str
    state_first: bool = False  # the product reads [state, embedding]
    normed_back: bool = True  # the next step reads the normed stream

    def place(self, names: Iterable[str]) -> str | None:
        """The prefix in a folder that is spelled like this."""
        found = {match[0] for name in names if (match := re.match(self.prefix, name))}
        held = [prefix for prefix in sorted(found) if f"{prefix}{self.product}" in names]
        return held[0] if held else None


SPELLINGS = (
    Spelling(r"mtp\.", "layers.0.", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "fc.weight",
             "norm.weight"),
    Spelling(r"model\.layers\.\d+\.", "", "enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
             normed_back=False),
    Spelling(r"model\.mtp_layers\.0\.", "", "token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight",
             "final_layernorm.weight", state_first=True),
)  # fmt: skip
COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # of the target's own, beside the layer


def mtp_names(names: set[str]) -> tuple[Spelling, str] | None:
    """How a folder spells its layer, and where it is; None = it has none."""
    for spelling in SPELLINGS:
        place = spelling.place(names)
        if place is not None:
            return spelling, place
    return None


def mtp_head(raw: Mapping[str, Any], given: dict[str, Tensor], config: ModelConfig, identity: Identity) -> Found:
    """The layer as a head of the EAGLE family."""
    found = mtp_names(set(given))
    assert found is not None  # whoever calls has looked
    spelling, place = found
    family = raw.get("model_type")
    if family not in FAMILIES or family != config.family:
        raise UsageError(f"its MTP layer is one of a {family} model, and ours run those of {', '.join(FAMILIES)} only")
    tensors = {name.removeprefix(place): value for name, value in given.items() if name.startswith(place)}
    weights = {
        "embed_norm": tensors.pop(spelling.token_norm),
        "state_norm": tensors.pop(spelling.state_norm),
        "norm": tensors.pop(spelling.norm),
        "fc.weight": _product(tensors.pop(spelling.product), spelling, config),
        "ids": torch.arange(config.vocab_size),
    }
    weights |= _layer(tensors, spelling.layer, config)
    strange = [name for name in tensors if name not in COPIES]
    if strange:
        raise UsageError(f"tensor {place}{strange[0]} is of no MTP layer that is known here; serve it with vLLM")
    extra = {"published": True, "mtp": True, "norm_output": spelling.normed_back}
    return HeadSpec("eagle", identity, config.vocab_size, (FINAL,), 1, 1, extra), weights


def _product(value: Tensor, spelling: Spelling, config: ModelConfig) -> Tensor:
    d = config.hidden_size
    if tuple(value.shape) != (d, 2 * d):
        raise UsageError(f"its product is {list(value.shape)}, not {[d, 2 * d]}; it belongs to another model")
    return torch.cat((value[:, d:], value[:, :d]), dim=1) if spelling.state_first else value


def _layer(tensors: dict[str, Tensor], prefix: str, config: ModelConfig) -> dict[str, Tensor]:
    """An ordinary layer of the target's family."""
    attention, mlp, inner = f"{prefix}self_attn.", f"{prefix}mlp.", "layers.0."
    rows = [config.num_heads * config.head_dim, *[config.num_kv_heads * config.head_dim] * 2]
    parts = [tensors.pop(f"{attention}{letter}_proj.weight") for letter in "qkv"]
    shapes = [list(part.shape) for part in parts]
    if shapes != [[count, config.hidden_size] for count in rows]:
        raise UsageError(f"q, k and v of its MTP layer have shapes {shapes}: not the target's own attention")
    found = {
        f"{inner}attn_norm": tensors.pop(f"{prefix}input_layernorm.weight"),
        f"{inner}mlp_norm": tensors.pop(f"{prefix}post_attention_layernorm.weight"),
        f"{inner}qkv.weight": torch.cat(parts),
        f"{inner}out.weight": tensors.pop(f"{attention}o_proj.weight"),
        f"{inner}gate_up.weight": torch.cat([tensors.pop(f"{mlp}{name}_proj.weight") for name in ("gate", "up")]),
        f"{inner}down.weight": tensors.pop(f"{mlp}down_proj.weight"),
    }
    if config.qkv_bias:
        found[f"{inner}qkv.bias"] = torch.cat([tensors.pop(f"{attention}{letter}_proj.bias") for letter in "qkv"])
    if config.qk_norm:
        found |= {f"{inner}{letter}_norm": tensors.pop(f"{attention}{letter}_norm.weight") for letter in "qk"}
    return found
