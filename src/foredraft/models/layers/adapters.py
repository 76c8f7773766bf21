"""LoRA adapters beside the products of a decoder, chosen row by row: rows of one pass may have different ones.

A product W x becomes W x + s B(A x) for the rows of an adapter and stays W x for all others. Which rows those are is
set for one pass at a time, by whoever knows to which sequence a row belongs; between passes every row is the plain
model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError
from ..decoder import Decoder
from .gemv_stream import StreamedLinear
from .linear import Linear

Factors = tuple[Tensor, Tensor]  # A [r, in] and s B [out, r]
Part = tuple[str, Tensor | None]  # an adapter and its rows of a pass; None = all of them


class AdaptedLinear(nn.Module):
    """A product with the factors of every adapter that has some for it; without rows of one it is as it was."""

    def __init__(self, base: Linear | StreamedLinear, parts: list[Part]) -> None:
        super().__init__()
        self.base = base
        self.factors: dict[str, Factors] = {}
        self._parts = parts  # of the pass at hand; one list for all products

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.base(x)
        for name, rows in self._parts:
            if name in self.factors:
                a, b = self.factors[name]
                if rows is None:
                    product = product + F.linear(F.linear(x, a), b)
                else:
                    product = product.index_add(0, rows, F.linear(F.linear(x[rows], a), b))
        return product

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x) if self._parts else self.base.add_to(residual, x)


class Adapters:
    """All adapters of one decoder."""

    def __init__(self, decoder: Decoder) -> None:
        """Puts its own products, on the same weights, in the place of the decoder's."""
        self.names: list[str] = []
        self._parts: list[Part] = []
        self._products: dict[str, AdaptedLinear] = {}
        self._device = decoder.device
        for index, layer in enumerate(decoder.layers):
            for name, child in list(layer.named_children()):
                if isinstance(child, (Linear, StreamedLinear)):
                    made = self._products[f"layers.{index}.{name}"] = AdaptedLinear(child, self._parts)
                    setattr(layer, name, made)

    def add(self, name: str, factors: Mapping[str, Factors]) -> None:
        """An adapter by its factors for products such as `layers.3.qkv`."""
        for product, (a, b) in factors.items():
            found = self._products.get(product)
            if found is None or found.weight.shape != (b.shape[0], a.shape[1]):
                raise UsageError(f"adapter {name!r} does not fit this model at {product}; it was trained for another")
            like = found.weight
            found.factors[name] = (a.to(like.device, like.dtype), b.to(like.device, like.dtype))
        self.names.append(name)

    @contextmanager
    def over(self, counts: Sequence[int], names: Sequence[str | None]) -> Iterator[None]:
        """For one pass: sequence after sequence, how many rows it has and its adapter."""
        self._parts[:] = _parts(counts, names, self._device)
        try:
            yield
        finally:
            self._parts.clear()


def _parts(counts: Sequence[int], names: Sequence[str | None], device: torch.device) -> list[Part]:
    wanted = {name for name in names if name is not None}
    if len(wanted) == 1 and None not in names:
        return [(wanted.pop(), None)]
    found: list[Part] = []
    for name in sorted(wanted):
        begin, rows = 0, list[int]()
        for count, own in zip(counts, names, strict=True):
            rows += range(begin, begin + count) if own == name else ()
            begin += count
        found.append((name, torch.tensor(rows, device=device)))
    return found
