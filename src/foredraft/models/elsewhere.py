"""Copies of a decoder, or of what heads borrow from one, on another device, with products that are quick there."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .decoder import Decoder, Layer, pack
from .layers.linear import Linear
from .layers.rope import rotation_table

PRODUCTS = ("qkv", "out", "gate_up", "down")


@torch.no_grad()
def copy_to(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The same model with weights of its own."""
    made = Decoder.empty(decoder.config, dtype, device)
    made.embedding.copy_(decoder.embedding)
    made.norm.copy_(decoder.norm)
    if not decoder.config.tied_head:
        cast(Linear, made.head).weight.copy_(plain_rows(decoder.head))
    for layer, source in zip(made.layers, decoder.layers, strict=True):
        _fill(cast(Layer, layer), cast(Layer, source))
    made.requires_grad_(False)
    pack(made, dtype)
    return made


@torch.no_grad()
def lent_to(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> Decoder:
    """What trained heads borrow: embedding, output rows and positions; a decoder without layers."""
    config = decoder.config
    embedding = nn.Parameter(decoder.embedding.to(device, dtype, copy=True), requires_grad=False)
    head = Linear(config.hidden_size, config.vocab_size, dtype, "meta")
    rows = embedding
    if not config.tied_head:
        rows = nn.Parameter(plain_rows(decoder.head).to(device, dtype), requires_grad=False)
    head.weight = rows
    norm = nn.Parameter(decoder.norm.to(device, dtype), requires_grad=False)
    made = Decoder(config, embedding, [], norm, head, rotation_table(config, dtype, device))
    pack(made, dtype)
    return made


def _fill(layer: Layer, source: Layer) -> None:
    if type(source) is not Layer:
        raise UsageError(f"a {type(source).__name__} cannot be copied to another device; name a draft model instead")
    for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
        own, given = getattr(layer, name), getattr(source, name)
        if own is not None:
            own.copy_(given)
    for name in PRODUCTS:
        own, given = getattr(layer, name), getattr(source, name)
        own.weight.copy_(plain_rows(given))
        if own.bias is not None:
            own.bias.copy_(given.bias)


def plain_rows(product: Any) -> Tensor:
    """The rows of a product."""
    weight = getattr(product, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        raise UsageError("these weights are packed and cannot be copied to another device; name a draft model instead")
    return weight
