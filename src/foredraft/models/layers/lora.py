"""Low-rank deltas: a frozen decoder learns through two thin matrices beside each of its products (LoRA, Hu et al.).

A product W x becomes W x + s Bᵀ(A x) with A [r, in] and B [r, out]. For inference the delta is added into W once, so
that it costs nothing there. Files and names of models are no concern of this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ForedraftError, UsageError
from ..decoder import Decoder
from .linear import Linear

A, B = ".a", ".b"  # endings of the two factors' names; after the product's name
PRODUCTS = ("qkv", "out", "gate_up", "down")  # of every layer


class LowRankLinear(nn.Module):
    """A frozen product and its delta. B begins as zeros, so training begins at the model as it was."""

    def __init__(self, base: Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = base.weight.shape
        self.base, self.scale = base, scale
        first = torch.randn((rank, inputs), generator=generator) / math.sqrt(inputs)
        self.a = nn.Parameter(first.to(base.weight.device))
        self.b = nn.Parameter(torch.zeros((rank, outputs), device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        plain: Tensor = self.base(x)
        low = F.linear(x.to(self.a.dtype), self.a)
        return plain + (self.scale * F.linear(low, self.b.t())).to(plain.dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)


class Delta:
    """The delta of every product of a decoder's layers, put into its place for training. What it holds is what trains.

    Its parameters are named as in the decoder: `layers.3.qkv.a`.
    """

    borrowed: tuple[str, ...] = ()
    ids: Tensor  # a drafter's own draft vocabulary, where it has one

    def __init__(self, decoder: Decoder, rank: int, scale: float = 2.0, seed: int = 0) -> None:
        """Freezes the decoder and puts the factors in; `remove` takes them out again."""
        if rank < 1:
            raise UsageError(f"a delta's rank must be at least 1, not {rank}")
        self.decoder, self.rank, self.scale = decoder, rank, scale
        decoder.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        self.products: dict[str, LowRankLinear] = {}
        for index, layer in enumerate(decoder.layers):
            for name in PRODUCTS:
                base = getattr(layer, name)
                if not isinstance(base, Linear):
                    raise UsageError("a delta needs plain products; load the model with packed=False")
                made = self.products[f"layers.{index}.{name}"] = LowRankLinear(base, rank, scale, generator)
                setattr(layer, name, made)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, product in self.products.items():
            yield name + A, product.a
            yield name + B, product.b

    def factors(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    @torch.no_grad()
    def fill(self, factors: Mapping[str, Tensor]) -> None:
        """Take over factors of the same names and shapes."""
        for name, parameter in self.named_parameters():
            parameter.copy_(factors[name])

    def remove(self) -> None:
        """Put the plain products back; the decoder is the old one again."""
        for name, product in self.products.items():
            setattr(self.decoder.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], product.base)


@torch.no_grad()
def with_delta(weights: Mapping[str, Tensor], factors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Weights by name with the delta added: W + s BᵀA, worked out and handed back in float32."""
    found = dict(weights)
    for name in [n.removesuffix(A) for n in factors if n.endswith(A)]:
        a, b, whole = factors[name + A], factors.get(name + B), weights.get(f"{name}.weight")
        if b is None or whole is None or whole.shape != (b.shape[1], a.shape[1]):
            raise ForedraftError(f"the delta of {name} does not fit this model; it was trained for another")
        low = b.to(whole.device, torch.float32).t() @ a.to(whole.device, torch.float32)
        found[f"{name}.weight"] = whole.to(torch.float32) + scale * low
    return found


@torch.no_grad()
def merge(decoder: Decoder, factors: Mapping[str, Tensor], scale: float) -> None:
    """Add a delta into a plain decoder for good. A decoder in float32 loses nothing by it."""
    own = dict(decoder.named_parameters())
    plain = {name: own[name] for name in own if f"{name.removesuffix('.weight')}{A}" in factors}
    for name, value in with_delta(plain, factors, scale).items():
        own[name].copy_(value)
