"""The executor whose passes are one call into C++, for a decoder with tiled products on a CPU.

A row's numbers depend on its own text alone: not on the rows beside it, on the shape of the draft, on how a prompt was
cut or on the number of threads. Greedy drafts are therefore judged by the very logits that plain decoding would see.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..models import native
from ..models.decoder import Decoder, Layer
from ..models.heads.exits import Adapter
from ..models.heads.feature import Eagle3Layer, EagleLayer
from ..models.linear import TiledLinear
from .attention import scratch_lines
from .base import Placement, Rows
from .torch_executor import TorchExecutor

ENTRIES = {Layer.enter: 0, EagleLayer.enter: 1, Eagle3Layer.enter: 2}
MLPS = {Layer.mlp: 1, Adapter.mlp: 0}
PRODUCTS = ("qkv", "out", "gate_up", "down")
NORMS = ("attn_norm", "token_norm", "mlp_norm", "q_norm", "k_norm")


@dataclass(frozen=True, slots=True)
class Spans:
    """Where placed rows lie, as the library wants it told."""

    array: Any  # of native.Span
    parents: list[Any]  # what its addresses point at
    position: Tensor


class NativeExecutor(TorchExecutor):
    """A decoder with tiled products and its K/V store."""

    def __init__(
        self, decoder: Decoder, max_slots: int = 1, max_length: int | None = None, max_scratch: int = 96
    ) -> None:
        super().__init__(decoder, max_slots, max_length, max_scratch, padded=True)  # needs no mask buffers
        self.name = "native-cpu-bf16"
        code = native.compiled()
        assert code is not None
        self._code = code
        self._layers = (native.Layer * self.num_layers)(*(_described(cast(Layer, layer)) for layer in decoder.layers))

    def place(self, rows: Rows) -> Placement:
        first = self.store.reserve(rows.slots, rows.counts)
        lines = scratch_lines(self.store, rows, first)
        spans, parents, begin = [], [], 0
        for slot, count, before, line in zip(rows.slots, rows.counts, first, lines, strict=True):
            held = None if line is None else (ctypes.c_int32 * len(line))(*line)
            parents.append(held)
            address = None if held is None else ctypes.addressof(held)
            spans.append(native.Span(slot, begin, count, self.store.lengths[slot], before, 0, address))
            begin += count
        position = self._positions(rows, first).contiguous()
        return Placement(rows, position, first, Spans((native.Span * len(spans))(*spans), parents, position))

    def forward_layers(
        self, placement: Placement, hidden: Tensor, layers: range, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        if not layers:
            return hidden, {}
        spans: Spans = placement.attend
        hidden = hidden.to(torch.bfloat16).contiguous()
        out = hidden.new_empty((len(hidden), self.hidden_size))
        wanted = [tap for tap in taps if layers.start <= tap <= layers.stop]
        tapped = {tap: torch.empty_like(out) for tap in wanted}
        addresses = (ctypes.c_void_p * (self.num_layers + 1))()
        for tap, state in tapped.items():
            addresses[tap] = state.data_ptr()
        c, store = self.decoder.config, self.store.data
        sizes = (len(hidden), c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size)
        reach = (layers.start, layers.stop, store.shape[2], store.shape[4], len(spans.array), torch.get_num_threads())
        order = native.Pass(*sizes, *reach, c.norm_eps, 0, ctypes.addressof(self._layers))
        order.input, order.output, order.taps = hidden.data_ptr(), out.data_ptr(), ctypes.addressof(addresses)
        order.position, order.rotations = spans.position.data_ptr(), self.decoder.rotations.data_ptr()
        order.store, order.span = store.data_ptr(), ctypes.addressof(spans.array)
        self._code.layers(order)
        return out, tapped


def runs_native(decoder: Decoder) -> bool:
    """Whether the library knows everything that this decoder's layers do."""
    if decoder.dtype != torch.bfloat16 or type(decoder).run is not Decoder.run or decoder.config.head_dim % 32:
        return False
    return all(_known(cast(Layer, layer), i) for i, layer in enumerate(decoder.layers))


def _known(layer: Layer, index: int) -> bool:
    kind = type(layer)
    if kind.enter not in ENTRIES or kind.mlp not in MLPS or (index and kind.enter is Eagle3Layer.enter):
        return False
    same = (kind.attention, kind.gated, kind.forward) == (Layer.attention, Layer.gated, Layer.forward)
    products = [getattr(layer, name) for name in PRODUCTS[: 4 if MLPS[kind.mlp] else 2]]
    return same and all(isinstance(product, TiledLinear) for product in products)


def _described(layer: Layer) -> native.Layer:
    """A layer as the library wants it told; the layer's tensors must outlive the description."""
    told = native.Layer(ENTRIES[type(layer).enter], MLPS[type(layer).mlp])
    for name in NORMS:
        norm = getattr(layer, name, None)
        setattr(told, name, None if norm is None else norm.data_ptr())
    for name in PRODUCTS:
        product = getattr(layer, name, None)
        if product is not None:
            setattr(told, name, product.struct)
    bias = layer.qkv.bias
    told.qkv_bias = None if bias is None else bias.data_ptr()
    return told
