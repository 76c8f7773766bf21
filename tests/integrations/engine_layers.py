"""What other engines compute from an exported head's tensors, written from their layers' definitions; float32, slow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, theta: float) -> Tensor:
    """[H, T, D] at positions 0 .. T - 1, halves turned against each other."""
    length, dim = x.shape[1:]
    angle = torch.arange(length)[:, None] / theta ** (torch.arange(0, dim, 2) / dim)
    cos, sin = torch.cat((angle.cos(),) * 2, dim=-1), torch.cat((angle.sin(),) * 2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(x: Tensor, t: Tensors, prefix: str, config: dict[str, Any]) -> Tensor:
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]

    def project(name: str, count: int) -> Tensor:
        rows = F.linear(x, t[f"{prefix}.{name}.weight"], t.get(f"{prefix}.{name}.bias"))
        return rows.view(len(x), count, dim).transpose(0, 1)

    q, k, v = project("q_proj", heads), project("k_proj", kv), project("v_proj", kv)
    if f"{prefix}.q_norm.weight" in t:
        q, k = (rms(x, t[f"{prefix}.{n}_norm.weight"], config["rms_norm_eps"]) for x, n in ((q, "q"), (k, "k")))
    q, k = rotated(q, config["rope_theta"]), rotated(k, config["rope_theta"])
    k, v = k.repeat_interleave(heads // kv, 0), v.repeat_interleave(heads // kv, 0)
    scores = (q @ k.transpose(1, 2)) / dim**0.5
    scores = scores + torch.full((len(x), len(x)), -torch.inf).triu(1)
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1)
    return F.linear(mixed, t[f"{prefix}.o_proj.weight"], t.get(f"{prefix}.o_proj.bias"))


def mlp(x: Tensor, t: Tensors, prefix: str) -> Tensor:
    gate, up = F.linear(x, t[f"{prefix}.gate_proj.weight"]), F.linear(x, t[f"{prefix}.up_proj.weight"])
    return F.linear(F.silu(gate) * up, t[f"{prefix}.down_proj.weight"])


def eagle3(t: Tensors, config: dict[str, Any], embeds: Tensor, states: Tensor, prefix: str) -> tuple[Tensor, Tensor]:
    """[T, d] embeddings, [T, 3 d] states -> logits in the target's vocabulary, and what the next step reads."""
    eps = config["rms_norm_eps"]
    hidden = F.linear(states, t["fc.weight"]) if states.shape[1] > embeds.shape[1] else states
    joined = (
        rms(embeds, t[f"{prefix}input_layernorm.weight"], eps),
        rms(hidden, t[f"{prefix}hidden_norm.weight"], eps),
    )
    residual = joined[1] if config["norm_before_residual"] else hidden
    hidden = residual + attention(torch.cat(joined, dim=-1), t, f"{prefix}self_attn", config)
    hidden = hidden + mlp(rms(hidden, t[f"{prefix}post_attention_layernorm.weight"], eps), t, f"{prefix}mlp")
    drafted = F.linear(rms(hidden, t["norm.weight"], eps), t["lm_head.weight"])
    logits = torch.full((len(embeds), config["vocab_size"]), -torch.inf)
    logits[:, torch.arange(len(t["d2t"])) + t["d2t"]] = drafted
    return logits, hidden


def eagle(t: Tensors, config: dict[str, Any], embeds: Tensor, states: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """EAGLE-1: the target's own head reads the stream."""
    hidden = F.linear(torch.cat((embeds, states), dim=-1), t["fc.weight"], t.get("fc.bias"))
    hidden = hidden + attention(hidden, t, "layers.0.self_attn", config)
    normed = rms(hidden, t["layers.0.post_attention_layernorm.weight"], config["rms_norm_eps"])
    hidden = hidden + mlp(normed, t, "layers.0.mlp")
    return F.linear(hidden, head), hidden


def llama_layer(t: Tensors, config: dict[str, Any], x: Tensor, prefix: str = "layers.0.") -> Tensor:
    """An ordinary layer."""
    eps = config["rms_norm_eps"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    width = len(t[f"{prefix}self_attn.q_proj.weight"]) // config["num_attention_heads"]
    sizes = config | {"rope_theta": theta, "head_dim": width}
    x = x + attention(rms(x, t[f"{prefix}input_layernorm.weight"], eps), t, f"{prefix}self_attn", sizes)
    return x + mlp(rms(x, t[f"{prefix}post_attention_layernorm.weight"], eps), t, f"{prefix}mlp")
