"""P-EAGLE folders made of exported EAGLE-3 heads, and what vLLM's layers make of them; float32, slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import engine_layers

MASK_TOKEN = 7
Tensors = dict[str, Tensor]


def parallel_folder(source: Path, folder: Path, layers: int, **more: Any) -> tuple[Path, Tensors, dict[str, Any]]:
    """An EAGLE-3 folder with a state for places ahead, and further layers after its own. more: of its config."""
    tensors, generator = load_file(source / "model.safetensors"), torch.Generator().manual_seed(21)
    config = json.loads((source / "config.json").read_text()) | {"pard_token": MASK_TOKEN} | more
    first = {name.removeprefix("midlayer."): value for name, value in tensors.items() if name.startswith("midlayer.")}
    for i in range(1, layers):
        for name, value in first.items():
            shape = list(value.shape)
            if name.startswith("self_attn.") and name[10] in "qkv":
                shape[1] //= 2  # of the state alone
            noise = torch.randn(shape, generator=generator)
            tensors[f"layers.{i}.{name}"] = noise * 0.2 + (len(shape) == 1)
    width = tensors["fc.weight"].shape[1]
    tensors["mask_hidden"] = torch.randn((1, 1, width), generator=generator)
    if config.get("fc_norm"):
        for i in range(3):
            tensors[f"fc_norm.{i}.weight"] = torch.rand(width // 3, generator=generator) + 0.5
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(config))
    return folder, tensors, config


def levels(t: Tensors, config: dict[str, Any], embedding: Tensor, tokens: Tensor, states: Tensor, depth: int) -> Tensor:
    """[depth, V] logits of the levels after a text: tokens [T] with the states [T, 3 d] before them, then places."""
    ahead = depth - 1
    ids = torch.cat((tokens, torch.full((ahead,), config.get("mask_token_id", MASK_TOKEN))))
    read = torch.cat((states, t["mask_hidden"].view(1, -1).expand(ahead, -1)))
    if config.get("fc_norm"):
        parts = [
            engine_layers.rms(part, t[f"fc_norm.{i}.weight"], config["rms_norm_eps"])
            for i, part in enumerate(read.chunk(3, dim=-1))
        ]
        read = torch.cat(parts, dim=-1)
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in t else "layers.0."
    _, hidden = engine_layers.eagle3(t, config, F.embedding(ids, embedding), read, prefix)
    for i in range(1, config["num_hidden_layers"]):
        hidden = engine_layers.llama_layer(t, config, hidden, f"layers.{i}.")
    normed = engine_layers.rms(hidden[len(tokens) - 1 :], t["norm.weight"], config["rms_norm_eps"])
    return F.linear(normed, t["lm_head.weight"])
