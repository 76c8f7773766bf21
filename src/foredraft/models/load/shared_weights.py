"""Our decoder over the weights of a Hugging Face model that is loaded already: one copy in memory, used by both.

We keep q, k and v (and gate and up) in one matrix. So the parts are laid side by side once and the model's own
parameters become views of them: same values, same names, same shapes. Whoever moves or casts the model afterwards gives
it weights of its own again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ModelConfig, why_foreign
from ..decoder import Decoder, Layer, make_layer
from ..layers.linear import Linear
from ..layers.rope import rotation_table
from .weight_names import Slot, slots


def why_apart(model: Any) -> str | None:
    """Why our decoder cannot run on the weights of this object; None = it can."""
    reason = why_foreign(model.config.to_dict())
    if reason is not None:
        return reason
    held = dict(model.named_parameters())
    strange = sorted(set(held) ^ set(slots(_config(model))))
    if strange:
        return f"its parameters are not those of a plain {model.config.model_type} model ({strange[0]})"
    places = {(p.device, p.dtype) for p in held.values()}
    if len(places) > 1 or next(iter(places))[0].type == "meta":
        return "its weights lie on several devices or in several precisions"
    return None


@torch.no_grad()
def shared_decoder(model: Any) -> Decoder:
    """A decoder whose weights are the model's own. `why_apart` must have nothing against it."""
    config, held = _config(model), dict(model.named_parameters())
    merged: dict[str, Tensor] = {}
    for parameter, parts in _by_parameter(slots(config)).items():
        merged[parameter] = _side_by_side([held[name] for name in parts])
    sample = merged["norm"]
    layers = [_layer(config, merged, i) for i in range(config.num_layers)]
    head = Linear(config.hidden_size, config.vocab_size, sample.dtype, "meta")
    embedding = _frozen(merged["embedding"])
    head.weight = embedding if config.tied_head else _frozen(merged["head.weight"])
    rotations = rotation_table(config, sample.dtype, sample.device)
    return Decoder(config, embedding, layers, _frozen(sample), head, rotations).requires_grad_(False)


def _config(model: Any) -> ModelConfig:
    return ModelConfig.from_hf(model.config.to_dict())


def _by_parameter(places: Mapping[str, Slot]) -> dict[str, list[str]]:
    """Our parameters -> the tensors that lie in them, in the order of their rows."""
    found: dict[str, list[str]] = {}
    for name, slot in sorted(places.items(), key=lambda item: item[1].start):
        found.setdefault(slot.parameter, []).append(name)
    return found


def _side_by_side(parts: list[nn.Parameter]) -> Tensor:
    """One tensor of all rows; the parts become views of it, unless they are already."""
    first, rows = parts[0], sum(len(part) for part in parts)
    if len(parts) == 1:
        return first.data
    shape = (rows, *first.shape[1:])
    ends = all(a.data_ptr() + a.nbytes == b.data_ptr() and a.is_contiguous() for a, b in pairwise(parts))
    if ends and len({part.untyped_storage().data_ptr() for part in parts}) == 1:
        return first.data.as_strided(shape, first.stride(), first.storage_offset())
    whole, start = torch.empty(shape, dtype=first.dtype, device=first.device), 0
    for part in parts:
        place = whole[start : start + len(part)]
        place.copy_(part.data)
        part.data, start = place, start + len(part)
    return whole


def _layer(config: ModelConfig, merged: Mapping[str, Tensor], index: int) -> Layer:
    layer, prefix = make_layer(config, index, merged["norm"].dtype, "meta"), f"layers.{index}."
    for name, _ in list(layer.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        setattr(layer.get_submodule(owner), leaf, _frozen(merged[prefix + name]))
    return layer


def _frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)
