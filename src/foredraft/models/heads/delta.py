"""Deltas on disk: what a small file adds to a model, or to a head, that is there already.

A delta has the files of any head, and `save_head` writes them; its rows are the ranks, so that int8 spends only 2 r
scales on a product. `extra` of its description tells rank, scale and base: for a model its short name, for a drafter
the shipped head ("smollm2/fastdraft") or the model whose first layers it begins as ("smollm2/layers").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ForedraftError, UsageError
from ..decoder import Decoder, Device
from ..layers.lora import Delta, merge, with_delta
from ..load.names import resolve, shipped_folder
from ..load.weights import load_decoder
from .artefact import read_spec, read_weights, weights_digest
from .base import HeadSpec, Identity

KIND = "lora"  # of a delta on a whole model; a drafter's keeps the kind of its head
BASE, DIGEST, LAYERS = "base", "base_digest", "layers"


def describe(delta: Delta, kind: str, base: str, identity: Identity, vocab_size: int = 0) -> HeadSpec:
    """The description of a delta on a model or on a head. A head is named by its digest as well."""
    extra: dict[str, Any] = {"rank": delta.rank, "scale": delta.scale, BASE: base}
    if kind != KIND and not base.endswith(f"/{LAYERS}"):
        extra[DIGEST] = weights_digest(shipped_folder(base))
    return HeadSpec(kind, identity, vocab_size, (), len(delta.decoder.layers), 0, extra)


def load_tuned(folder: Path, delta: Path, dtype: torch.dtype, device: Device) -> Decoder:
    """A model with its delta: added in float32, then brought to its precision."""
    spec = read_spec(delta)
    if spec.kind != KIND:
        raise UsageError(f"{delta} holds a head of kind {spec.kind}, not the delta of a model")
    decoder = load_decoder(folder, torch.float32, device)
    merge(decoder, read_weights(delta), spec.extra["scale"])
    return decoder.to(dtype)


def whole_weights(folder: Path, spec: HeadSpec) -> dict[str, Tensor]:
    """Every tensor of a head; one that is stored as a delta is added to what it began as."""
    weights = read_weights(folder)
    if BASE not in spec.extra:
        return weights
    base, digest = str(spec.extra[BASE]), spec.extra.get(DIGEST)
    if digest is not None and digest != weights_digest(shipped_folder(base)):
        raise ForedraftError(f"the head {base} has changed since {folder} was trained on it; train the delta again")
    found = with_delta(base_weights(base, spec.layers), weights, spec.extra["scale"])
    return found | {name: weights[name] for name in ("ids",) if name in weights}  # a vocabulary of its own wins


def base_weights(base: str, layers: int) -> dict[str, Tensor]:
    """What a head's delta is added to: a shipped head, or the first layers and the last norm of a model."""
    model, _, part = base.rpartition("/")
    return first_layers(load_decoder(resolve(model)), layers) if part == LAYERS else read_weights(shipped_folder(base))


def first_layers(decoder: Decoder, count: int) -> dict[str, Tensor]:
    """The weights of a decoder's first layers and of its last norm, by name."""
    names = {"norm", *(f"layers.{i}.{n}" for i in range(count) for n, _ in decoder.layers[i].named_parameters())}
    return {name: value for name, value in decoder.named_parameters() if name in names}
