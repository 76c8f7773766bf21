"""A product of the decoder whose weight stays quantised: matrices of one form or several, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..layers.linear import Linear
from .grouped_matrix import GroupedMatrix, joined
from .grouped_product import counters, multiply_groups


class GroupedLinear(nn.Module):
    """x @ weight.T (+ bias)."""

    def __init__(self, parts: Sequence[GroupedMatrix], bias: Tensor | None = None) -> None:
        super().__init__()
        self.parts = joined(parts)
        self.arrivals = [counters(part) for part in self.parts]
        self.register_buffer("bias", bias)
        self.bias: Tensor | None

    @classmethod
    def rounded(cls, linear: Linear) -> GroupedLinear:
        """A Linear in four bits."""
        bias = None if linear.bias is None else linear.bias.detach()
        return cls([GroupedMatrix.rounded(linear.weight.detach())], bias)

    @property
    def weight(self) -> Tensor:
        """The plain rows, made at every call."""
        dtype = torch.float32 if self.bias is None else self.bias.dtype
        return torch.cat([part.dense(dtype) for part in self.parts])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def forward(self, x: Tensor) -> Tensor:
        product = self._multiply(x, None)
        return product if self.bias is None else product + self.bias

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return self._multiply(x, residual if self.bias is None else residual + self.bias)

    def _multiply(self, x: Tensor, residual: Tensor | None) -> Tensor:
        both = zip(self.parts, self.arrivals, strict=True)
        if len(self.parts) == 1:
            return multiply_groups(x, self.parts[0], residual, self.arrivals[0])
        product = torch.cat([multiply_groups(x, part, None, own) for part, own in both], dim=-1)
        return product if residual is None else residual + product
