"""EasySpec's layers: groups of them read the same stream, so that one product and one attention serve a whole group.

A layer plan keeps the first and the last layer as they are and puts the others into groups of N. In a *fuzzy* pass a
group's attention halves all read what enters the group; their answers and the MLPs then follow one another:

    a_j = Attn_j(norm_j(h)) for all j at once;   u <- h;   for each j:  u <- u + a_j,  u <- u + MLP_j(u).

Exact passes are the decoder's own. Who wants which says so with `fuzzily`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..kernels.norm import norm
from .decoder import Attend, Decoder, Layer
from .elsewhere import plain_rows
from .layers.attention_protocol import AttendHeads
from .layers.linear import Linear, TiledLinear, can_tile
from .layers.rope import rotate
from .layers.skip_set import SkipSet


@runtime_checkable
class AttendTogether(Protocol):
    """Attention that takes several layers at once."""

    def together(self, layers: range, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, N, H, D], k and v [T, N, Hkv, D], rotated -> [T, N, H * D]."""


def layer_plan(layers: int, size: int) -> list[range]:
    """First and last layer alone, the others in groups of `size`, of which the last may be smaller."""
    if layers < 3 or size < 2:
        return [range(i, i + 1) for i in range(layers)]
    middle = [range(i, min(i + size, layers - 1)) for i in range(1, layers - 1, size)]
    return [range(1), *middle, range(layers - 1, layers)]


class GroupedDecoder(Decoder):
    """A decoder with the layers of another one, and the products of its groups beside them."""

    def __init__(self, decoder: Decoder, size: int) -> None:
        layers = [cast(Layer, layer) for layer in decoder.layers]
        if type(layers[0]) is not Layer:
            raise UsageError(f"layers of this kind ({type(layers[0]).__name__}) cannot be grouped; use another method")
        super().__init__(decoder.config, decoder.embedding, layers, decoder.norm, decoder.head, decoder.rotations)
        self.plan = layer_plan(len(layers), size)
        self.fuzzy = False
        self.products = nn.ModuleDict(
            {str(span.start): _joined([layers[i] for i in span]) for span in self.plan if len(span) > 1}
        )
        self.register_buffer("ones", torch.ones_like(decoder.norm), persistent=False)

    ones: Tensor

    @property
    def mode(self) -> str:
        return "fuzzy" if self.fuzzy else ""

    @contextmanager
    def fuzzily(self) -> Iterator[None]:
        self.fuzzy = True
        try:
            yield
        finally:
            self.fuzzy = False

    def run(
        self, x: Tensor, positions: Tensor, attend: Attend, layers: Sequence[int] | None = None,
        taps: Collection[int] = (), skip: SkipSet | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:  # fmt: skip
        if not self.fuzzy or skip is not None or (layers is not None and len(layers) < len(self.layers)):
            return super().run(x, positions, attend, layers, taps, skip)
        cos, sin = (x, x) if isinstance(attend, AttendHeads) else self.rotation(positions)
        for span in self.plan:
            if len(span) == 1:
                x = self.layers[span.start](x, cos, sin, attend, span.start)
            else:
                x = self._group(span, x, cos, sin, attend)
        return x, {}

    def _group(self, span: range, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layers = [cast(Layer, self.layers[i]) for i in span]
        product = self.products[str(span.start)](norm(x, self.ones, self.config.norm_eps))  # [T, N * (H + 2 Hkv) * D]
        parts = product.view(len(x), len(span), -1)
        if isinstance(attend, AttendTogether) and layers[0].q_norm is None:
            mixed = self._together(span, parts, cos, sin, attend).unbind(1)
        else:
            mixed = tuple(
                layer.mixed(parts[:, j].contiguous(), cos, sin, attend, i)
                for j, (i, layer) in enumerate(zip(span, layers, strict=True))
            )
        for layer, heads in zip(layers, mixed, strict=True):
            x = layer.mlp(layer.out.add_to(x, heads.contiguous()))
        return x

    def _together(self, span: range, parts: Tensor, cos: Tensor, sin: Tensor, attend: AttendTogether) -> Tensor:
        c, rows = self.config, len(parts)
        heads = parts.reshape(rows, len(span), -1, c.head_dim)  # [T, N, H + 2 Hkv, D]
        qk, v = heads.split_with_sizes((c.num_heads + c.num_kv_heads, c.num_kv_heads), dim=2)
        turned = rotate(qk.reshape(rows, -1, c.head_dim), cos, sin).view(qk.shape)
        q, k = turned.split_with_sizes((c.num_heads, c.num_kv_heads), dim=2)
        return attend.together(span, q, k, v)


@torch.no_grad()
def _joined(layers: Sequence[Layer]) -> Linear | TiledLinear:
    """One product for the heads of several layers; their norms' gains are part of it."""
    rows = [plain_rows(layer.qkv) * layer.attn_norm for layer in layers]
    weight = torch.cat(rows)
    made = Linear(weight.shape[1], weight.shape[0], weight.dtype, weight.device, layers[0].qkv.bias is not None)
    made.weight.copy_(weight)
    if made.bias is not None:
        made.bias.copy_(torch.cat([cast(Tensor, layer.qkv.bias) for layer in layers]))
    made.requires_grad_(False)
    return TiledLinear(made) if weight.dtype == torch.bfloat16 and can_tile(made) else made
