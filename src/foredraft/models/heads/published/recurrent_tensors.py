"""Published Medusa heads and IBM's MLP speculators: their tensors as our modules for them want them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....errors import UsageError
from ...config import ModelConfig
from ...decoder import FINAL
from ..base import HeadSpec, Identity

Found = tuple[HeadSpec, dict[str, Tensor]]


def medusa_head(raw: Mapping[str, Any], given: dict[str, Tensor], config: ModelConfig, identity: Identity) -> Found:
    """Residual blocks a depth, then output rows: its own a depth, or the target's for all."""
    tensors = {_medusa_name(name): value for name, value in given.items()}
    # By its tensors: the config of Medusa's own Vicuna heads says two, and there are five.
    count = 1 + max((int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")), default=0)
    depth = int(raw.get("medusa_num_layers") or 1)
    weights, own = {}, not raw.get("original_lm_head", False)
    for i in range(count):
        for j in range(depth):
            place = f"blocks.{i}.{j}.linear"
            weights[f"{place}.weight"] = tensors.pop(f"{place}.weight")
            weights[f"{place}.bias"] = tensors.pop(f"{place}.bias", torch.zeros(config.hidden_size))
            _check(weights[f"{place}.weight"], (config.hidden_size, config.hidden_size), place)
        if own:
            rows = weights[f"outputs.{i}.weight"] = tensors.pop(f"outputs.{i}.weight")
            _check(rows, (config.vocab_size, config.hidden_size), f"its output rows {i}")
    _check_rest(tensors, ("lm_head.weight", "token_map"), "medusa")
    weights["ids"] = torch.arange(config.vocab_size)
    extra = {"published": True, "own_outputs": own}
    return HeadSpec("medusa", identity, config.vocab_size, (FINAL,), depth, count, extra), weights


def _medusa_name(name: str) -> str:
    """`2.0.linear.weight`, `2.1.weight` (output rows), `blocks.2.layers.0.weight`, `lm_heads.2.weight` -> ours."""
    if match := re.fullmatch(r"(\d+)\.(\d+)\.linear\.(weight|bias)", name):
        return f"blocks.{match[1]}.{match[2]}.linear.{match[3]}"
    if match := re.fullmatch(r"(\d+)\.\d+\.weight|lm_heads\.(\d+)\.weight", name):
        return f"outputs.{match[1] or match[2]}.weight"
    if match := re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)", name):
        return f"blocks.{match[1]}.{match[2]}.linear.{match[3]}"
    return name


def speculator_head(raw: Mapping[str, Any], given: dict[str, Tensor], config: ModelConfig, identity: Identity) -> Found:
    """IBM's: an embedding, a product, a norm and output rows a depth, some or all of them shared."""
    tensors, count, inner = dict(given), int(raw["n_predict"]), int(raw.get("inner_dim") or raw["emb_dim"])
    if int(raw["emb_dim"]) != config.hidden_size:
        raise UsageError(
            f"it was made for a model of width {raw['emb_dim']}, and this target's is {config.hidden_size}"
        )
    weights = {}
    for i in range(count):
        for ours, theirs in (("tokens", "emb"), ("project", "proj"), ("outputs", "head")):
            weights[f"{ours}.{i}.weight"] = _shared(tensors, theirs, i, "weight")
        weights[f"gain.{i}"], weights[f"shift.{i}"] = (
            _shared(tensors, "ln", i, "weight"),
            _shared(tensors, "ln", i, "bias"),
        )
        _check(weights[f"outputs.{i}.weight"], (config.vocab_size, inner), f"its output rows {i}")
        _check(weights[f"project.{i}.weight"], (inner, config.hidden_size if i == 0 else inner), f"its product {i}")
    weights["ids"] = torch.arange(config.vocab_size)
    extra = {"published": True, "inner": inner, "scale_input": bool(raw.get("scale_input", False))}
    return HeadSpec("mlp-speculator", identity, config.vocab_size, (FINAL,), 1, count, extra), weights


def _shared(tensors: Mapping[str, Tensor], part: str, index: int, kind: str) -> Tensor:
    """A depth's own tensor, or the nearest one before it where depths share theirs."""
    for i in range(index, -1, -1):
        if f"{part}.{i}.{kind}" in tensors:
            return tensors[f"{part}.{i}.{kind}"]
    raise KeyError(f"{part}.{index}.{kind}")


def _check(value: Tensor, shape: tuple[int, ...], what: str) -> None:
    if tuple(value.shape) != shape:
        raise UsageError(f"{what} is {list(value.shape)}, not {list(shape)}; it belongs to another model")


def _check_rest(left: Mapping[str, Tensor], known: tuple[str, ...], kind: str) -> None:
    if "token_map" in left:
        raise UsageError("it has a token_map, a vocabulary of its own, which is not read here; export it without")
    strange = [name for name in left if name not in known]
    if strange:
        raise UsageError(f"tensor {strange[0]} is of no {kind} head that is known here")
