"""The matrix products of the decoder: `Linear`, and what takes its place for inference on a CPU: `TiledLinear` through
our own library; without it `PackedLinear` with the same numbers, and `RoundedLinear` with rounded ones for drafters.

A runtime may put other stand-ins (quantised ones, say) in their place: whatever does needs the same two verbs,
`forward(x)` and `add_to(residual, x)`. Nothing here knows which product of the decoder it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import native


class Linear(nn.Module):
    """x @ weight.T (+ bias). Parameters are made uninitialised: a loader or `random_decoder` fills them."""

    def __init__(
        self, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device | str, bias: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype, device=device)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + forward(x), out of place. torch.addmm was measured and gains nothing here."""
        return residual + F.linear(x, self.weight, self.bias)


class PackedLinear(nn.Module):
    """A Linear whose weight lies in oneDNN's own order, so that no call reorders it: bf16 on a CPU, no gradients.

    The products of a SmolLM2 pass take a fifth to a third less time than through F.linear, at 1 to 64 rows alike.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return product

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + forward(x) in one call, rounded once."""
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.packed, self.bias, "add")
        return total


class TiledLinear(nn.Module):
    """A Linear whose weight lies in tiles for our library; takes and gives bf16. A row's result is its own affair.

    The weight may come in float32: only there can it be seen to lie on a grid, which saves bytes and changes nothing.
    `bits`: 8 or 4, to put it on one, which changes it.
    """

    rest: tuple[native.Tiles, ...] = ()  # further columns, in another format
    held: list[native.Weight]  # what addresses in `struct` point at

    def __init__(self, linear: Linear, wide: bool = False, bits: int | None = None) -> None:
        super().__init__()
        code = native.compiled()
        assert code is not None
        self.code, self.wide = code, wide  # wide: results in float32, for logits
        self.bias = None if linear.bias is None else linear.bias.detach().to(torch.bfloat16)
        rounds, kind = code.level.rounds, native.Tiles
        self.tiles = kind.of(linear.weight, rounds) if bits is None else kind.rounded(linear.weight, bits, rounds)
        self.struct = self.tiles.struct

    @classmethod
    def of_tiles(cls, parts: Sequence[native.Tiles], bias: Tensor | None = None, wide: bool = False) -> TiledLinear:
        """Of weights that are tiled already: columns of one part after those of another, each in its own format."""
        code = native.compiled()
        assert code is not None
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.code, made.wide, made.bias, made.tiles = code, wide, bias, parts[0]
        structs = [part.struct for part in parts]
        for struct, after in pairwise(structs):
            struct.more = ctypes.addressof(after)
        structs[0].columns = sum(part.columns for part in parts)
        made.struct, made.rest, made.held = structs[0], tuple(parts[1:]), structs
        return made

    @property
    def weight(self) -> Tensor:
        """The plain rows in bf16, made at every call."""
        return torch.cat([part.dense() for part in (self.tiles, *self.rest)])

    def chosen(self, columns: Tensor) -> TiledLinear:
        """Some columns of it, stored as here."""
        part = copy(self)
        part.tiles = self.tiles.chosen(columns)
        part.struct = part.tiles.struct
        part.bias = None if self.bias is None else self.bias[columns]
        return part

    def rounding(self) -> TiledLinear:
        """The same for a drafter: quicker for few rows, with inputs rounded to 8 bits where the weight has as many."""
        quick = copy(self)
        quick.tiles = self.tiles.rounding()
        quick.struct = quick.tiles.struct
        return quick

    def forward(self, x: Tensor) -> Tensor:
        return self.code.linear(x, self.struct, self.bias, self.wide)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)


FEW_ROWS = 4  # up to here int8 products read half the bytes and win; beyond, bf16 products with tiles do


class RoundedLinear(nn.Module):
    """A drafter's Linear: weights in int8 with a scale per row for few rows, in packed bf16 for many.

    A drafter reads a row or a few at a time, and its time goes into reading weights. What rounding changes, the target
    corrects; the target's own products are never rounded.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.many = PackedLinear(linear)
        weight = linear.weight.detach().to(torch.float32)
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.few = (weight / scale[:, None]).round().to(torch.int8)
        self.scale = scale.to(linear.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) > FEW_ROWS:
            many: Tensor = self.many(x)
            return many
        product: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.few, self.scale)
        product = product.view(*x.shape[:-1], -1)
        return product if self.many.bias is None else product + self.many.bias

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)


def can_tile(module: nn.Module) -> bool:
    """Whether our library runs here and every product inside a module can be cut into tiles."""
    products = [part for part in module.modules() if isinstance(part, Linear)]
    here = all(product.weight.device.type == "cpu" and native.fits(product.weight) for product in products)
    return bool(products) and here and native.compiled() is not None


def can_pack(weight: Tensor) -> bool:
    """Whether this machine multiplies packed weights of this kind: oneDNN with bf16 instructions."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)  # absent where torch has no oneDNN
    return bool(supported is not None and supported())
