"""Products with weights of eight bits and a scale per output.

A pass over few rows takes the time of reading the weights once, so half the bytes are half the time. Weights are int8
or fp8 (e4m3), activations stay as they are. Elsewhere than on CUDA, and for many rows, the weights are turned back
first: that is the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..decoder import Decoder
from .gemv_stream import SLICE, arrivals_for, multiply
from .linear import Linear
from .rope import rotation_table

DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


class EightBitLinear(nn.Module):
    """x @ (weight * scale).T (+ bias)."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)  # [outputs, inputs], int8 or fp8
        self.register_buffer("scale", scale)  # [outputs] float32
        self.register_buffer("bias", bias)
        self.register_buffer("arrivals", arrivals_for(weight), persistent=False)
        self.weight: Tensor
        self.scale: Tensor
        self.arrivals: Tensor
        self.bias: Tensor | None

    @classmethod
    def of(cls, linear: Linear, dtype: torch.dtype) -> EightBitLinear:
        """Round a Linear, each output to its own scale."""
        made = rounded(linear.weight.detach(), dtype)
        made.bias = None if linear.bias is None else linear.bias.detach()
        return made

    @classmethod
    def random(
        cls, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device | str, std: float = 0.02
    ) -> EightBitLinear:
        """Normal weights of this deviation, never held in wider numbers as a whole."""
        weight = torch.empty((outputs, inputs), dtype=dtype, device=device)
        for part in torch.split(weight, SLICE):
            part.copy_(_round(torch.randn(part.shape, device=device, dtype=torch.float16) * 24, dtype))
        return cls(weight, torch.full((outputs,), std / 24, device=device))

    def forward(self, x: Tensor) -> Tensor:
        product = multiply(x, self.weight, self.scale, None, self.arrivals)
        return product if self.bias is None else product + self.bias

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if self.bias is not None:
            residual = residual + self.bias
        return multiply(x, self.weight, self.scale, residual, self.arrivals)


def rounded(weight: Tensor, dtype: torch.dtype) -> EightBitLinear:
    """A matrix [outputs, inputs] of wide numbers, each output rounded to its own scale."""
    scale = weight.abs().amax(dim=1).float().clamp(min=1e-12) / MOST[dtype]
    parts = [_round(part.float() / own[:, None], dtype) for part, own in zip(*_slices(weight, scale), strict=True)]
    return EightBitLinear(torch.cat(parts), scale)


def eight_bit_decoder(config: ModelConfig, kind: str, dtype: torch.dtype, device: torch.device | str) -> Decoder:
    """Random weights of eight bits for a shape."""
    return decoder_of(config, lambda i, o: EightBitLinear.random(i, o, DTYPES[kind], device), dtype, device)


def decoder_of(
    config: ModelConfig, product: Callable[[int, int], nn.Module], dtype: torch.dtype, device: torch.device | str
) -> Decoder:
    """Random products (of inputs and outputs) for a shape, never in a wide form; embedding and norms are wide."""
    decoder = Decoder.empty(config, dtype, "meta")
    for part in list(decoder.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Linear):
                outputs, inputs = child.weight.shape
                setattr(part, name, product(inputs, outputs))
    for part in list(decoder.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            made = torch.ones if name.endswith("norm") else torch.randn
            value = made(parameter.shape, dtype=dtype, device=device)
            setattr(part, name, nn.Parameter(value if name.endswith("norm") else value * 0.02, requires_grad=False))
    decoder.rotations = rotation_table(config, dtype, device)
    return decoder


def _slices(weight: Tensor, scale: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return torch.split(weight, SLICE), torch.split(scale, SLICE)


def _round(values: Tensor, dtype: torch.dtype) -> Tensor:
    values = values.clamp(-MOST[dtype], MOST[dtype])
    return (values.round() if dtype == torch.int8 else values).to(dtype)
