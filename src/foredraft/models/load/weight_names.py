"""Weight names: Hugging Face tensors -> rows of our merged parameters, and GGUF tensors -> Hugging Face names.

The families spell most tensors alike; phi3 stores merged ones, and mixtures of experts have names of their own.
Everything here is names and row ranges; no file is opened.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..config import ModelConfig


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a Hugging Face tensor goes: rows [start, stop) of one of our parameters."""

    parameter: str
    start: int = 0
    stop: int | None = None  # None = to the end


def slots(config: ModelConfig) -> dict[str, Slot]:
    """Every tensor that a Hugging Face checkpoint of this config must hold, and its place in our decoder."""
    found = {"model.embed_tokens.weight": Slot("embedding"), "model.norm.weight": Slot("norm")}
    if not config.tied_head:
        found["lm_head.weight"] = Slot("head.weight")
    for index in range(config.num_layers):
        for name, slot in _layer_slots(config).items():
            ours = f"layers.{index}.{slot.parameter}"
            found[f"model.layers.{index}.{name}"] = Slot(ours, slot.start, slot.stop)
    return found


def _layer_slots(c: ModelConfig) -> dict[str, Slot]:
    q, kv, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    merged = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}
    found = {
        "input_layernorm.weight": Slot("attn_norm"),
        "post_attention_layernorm.weight": Slot("mlp_norm"),
        "self_attn.o_proj.weight": Slot("out.weight"),
    }
    if c.windows:  # norms before and after both halves
        norms = {"post_attention": "after_attn", "pre_feedforward": "mlp", "post_feedforward": "after_mlp"}
        found |= {f"{name}_layernorm.weight": Slot(f"{ours}_norm") for name, ours in norms.items()}
    if c.family == "phi3":  # merged as ours are
        merged_names = {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": "gate_up", "mlp.down_proj": "down"}
        return found | {f"{name}.weight": Slot(f"{ours}.weight") for name, ours in merged_names.items()}
    found |= (
        _expert_slots(c)
        if c.num_experts
        else {
            "mlp.gate_proj.weight": Slot("gate_up.weight", 0, inner),
            "mlp.up_proj.weight": Slot("gate_up.weight", inner, 2 * inner),
            "mlp.down_proj.weight": Slot("down.weight"),
        }
    )
    for letter, rows in merged.items():
        found[f"self_attn.{letter}_proj.weight"] = Slot("qkv.weight", *rows)
        if c.qkv_bias:
            found[f"self_attn.{letter}_proj.bias"] = Slot("qkv.bias", *rows)
    if c.qk_norm:
        found["self_attn.q_norm.weight"] = Slot("q_norm")
        found["self_attn.k_norm.weight"] = Slot("k_norm")
    return found


EXPERT_NAMES = {  # of the room in front of them; of gate, up and down
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
}


def _expert_slots(c: ModelConfig) -> dict[str, Slot]:
    room, gate, up, down = EXPERT_NAMES[c.family]
    d, inner = c.hidden_size, c.intermediate_size
    found = {f"{room}.gate.weight": Slot("router")}
    for e in range(c.num_experts):
        first, stem = 2 * inner * e, f"{room}.experts.{e}"
        found[f"{stem}.{gate}.weight"] = Slot("experts_gate_up", first, first + inner)
        found[f"{stem}.{up}.weight"] = Slot("experts_gate_up", first + inner, first + 2 * inner)
        found[f"{stem}.{down}.weight"] = Slot("experts_down", d * e, d * (e + 1))
    return found


def ignorable(name: str, config: ModelConfig) -> bool:
    """Tensors that some checkpoints carry and the model does not need: saved frequencies, a copy of a tied head, and
    layers for multi-token prediction, which are a drafter's (`models.heads.published.mtp_tensors`)."""
    if name.startswith(("mtp.", "model.mtp_layers.")):
        return True
    after = [f"model.layers.{config.num_layers + i}." for i in range(config.draft_layers)]
    return (
        name.endswith("rotary_emb.inv_freq")
        or (config.tied_head and name == "lm_head.weight")
        or name.startswith(tuple(after))
    )


GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
GGUF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_to_hf(name: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None = no tensor of these families."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{GGUF_NAMES[stem]}.{kind}" if stem in GGUF_NAMES else None
    _, index, part = [*stem.split(".", 2), "", ""][:3]
    return f"model.layers.{index}.{GGUF_LAYER_NAMES[part]}.{kind}" if part in GGUF_LAYER_NAMES else None


def halves_from_pairs(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a q or k projection from paired channels to split halves.

    Meta's code, llama.cpp and llama2.c rotate channels (0, 1), (2, 3), ...; Hugging Face and we rotate (i, i + D/2).
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])  # [H, D / 2, 2, d]
    return pairs.transpose(1, 2).reshape(rows.shape)
