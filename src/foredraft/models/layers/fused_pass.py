"""A stream on its way through layers on a GPU, where every kernel costs.

A residual sum and the norm after it are one kernel, so a half of a layer hands on the stream and its norm; in narrow
models sums, norms and gates are part of the products. Calling the layers one by one is the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...kernels.activation import gated
from ...kernels.norm import add_norm
from .attention_protocol import AttendHeads
from .gemv_narrow import fits, multiply_and_add, normed_gate, normed_product, product_added
from .gemv_stream import LIBRARY_ROWS, StreamedLinear, multiply

if TYPE_CHECKING:
    from ..decoder import Layer


class FusedPass:
    """One pass. Layers are taken in the order of the calls."""

    def __init__(self, attend: AttendHeads) -> None:
        self.attend = attend
        self.normed: Tensor | None = None  # the stream as the next layer's attention reads it, where it is known

    def through(self, layer: Layer, index: int, x: Tensor, following: Tensor | None) -> Tensor:
        """The stream after a usual layer. following: the norm with which the next one begins, None = not known."""
        if fits(x, layer.out, layer.gate_up):
            return self._narrow(layer, index, x)
        normed, self.normed = self.normed, None
        if normed is None:
            normed, x = layer.enter(x)
        qkv: object = layer.qkv
        if self._adds_bias(layer) and isinstance(qkv, StreamedLinear) and len(x) <= LIBRARY_ROWS:
            mixed = self._mixed(layer, index, multiply(normed, qkv.weight, None, None, qkv.arrivals), qkv.bias)
        else:
            mixed = self._mixed(layer, index, layer.qkv(normed))
        x, normed = add_norm(x, layer.out(mixed), layer.mlp_norm, layer.eps)
        inner = gated(layer.gate_up(normed))
        if following is None:
            return layer.down.add_to(x, inner)
        x, self.normed = add_norm(x, layer.down(inner), following, layer.eps)
        return x

    def _narrow(self, layer: Layer, index: int, x: Tensor) -> Tensor:
        self.normed, entrance, apart = None, layer.entrance, self._adds_bias(layer)
        bias = None
        if entrance is not None and fits(x, layer.qkv, biased=apart):
            qkv, bias = normed_product(x, entrance, layer.eps, layer.qkv.weight), layer.qkv.bias
        else:
            h, x = layer.enter(x)
            qkv = layer.qkv(h)
        x = product_added(self._mixed(layer, index, qkv, bias), layer.out.weight, x.contiguous())
        inner = normed_gate(x, layer.mlp_norm, layer.eps, layer.gate_up.weight)
        return multiply_and_add(layer.down, inner, x)  # it may have more inputs than the narrow kernel takes

    @staticmethod
    def _adds_bias(layer: Layer) -> bool:
        """Whether the bias of queries, keys and values can wait for their rotation: no norm comes before that."""
        return getattr(layer.qkv, "bias", None) is not None and layer.q_norm is None

    def _mixed(self, layer: Layer, index: int, qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is not None:
            return self.attend.from_heads(index, qkv.view(len(qkv), -1, layer.head_dim), bias)
        return layer.mixed(qkv, qkv, qkv, self.attend, index)  # attention that takes heads needs no cos and sin


def fused_pass_of(attend: object, x: Tensor) -> FusedPass | None:
    """A flow for this attention, where there is one."""
    if x.is_cuda and not torch.is_grad_enabled() and isinstance(attend, AttendHeads):
        return FusedPass(attend)
    return None
