"""Products with weights of eight bits and a scale per output, and a kernel that streams weights through few rows.

A pass over few rows takes the time of reading the weights once, so half the bytes are half the time. Weights are int8
or fp8 (e4m3), activations stay as they are. Elsewhere than on CUDA, and for many rows, the weights are turned back
first: that is the slow twin.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig
from .decoder import Decoder
from .linear import Linear
from .rope import rotation_table

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None

FEW_ROWS = 64  # up to here weights are streamed; beyond, the product is bound by arithmetic
SLICE = 4096  # outputs that are made or turned back at a time, so that no whole matrix of wide numbers is ever held
DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


class EightBitLinear(nn.Module):
    """x @ (weight * scale).T (+ bias)."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)  # [outputs, inputs], int8 or fp8
        self.register_buffer("scale", scale)  # [outputs] float32
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.scale: Tensor
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
        product = _multiply(x, self.weight, self.scale, None)
        return product if self.bias is None else product + self.bias

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if self.bias is not None:
            residual = residual + self.bias
        return _multiply(x, self.weight, self.scale, residual)


class StreamedLinear(nn.Module):
    """A Linear on CUDA whose weights are streamed by the same kernel, unrounded; many rows go to the library."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > FEW_ROWS or self.bias is not None:
            return F.linear(x, self.weight, self.bias)
        return _multiply(x, self.weight, None, None)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if len(x) > FEW_ROWS or self.bias is not None:
            return residual + F.linear(x, self.weight, self.bias)
        return _multiply(x, self.weight, None, residual)


def rounded(weight: Tensor, dtype: torch.dtype) -> EightBitLinear:
    """A matrix [outputs, inputs] of wide numbers, each output rounded to its own scale."""
    scale = weight.abs().amax(dim=1).float().clamp(min=1e-12) / MOST[dtype]
    parts = [_round(part.float() / own[:, None], dtype) for part, own in zip(*_slices(weight, scale), strict=True)]
    return EightBitLinear(torch.cat(parts), scale)


def eight_bit_decoder(config: ModelConfig, kind: str, dtype: torch.dtype, device: torch.device | str) -> Decoder:
    """Random weights of eight bits for a shape, built without their wide form; embedding and norms stay wide."""
    decoder = Decoder.empty(config, dtype, "meta")
    for part in list(decoder.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Linear):
                outputs, inputs = child.weight.shape
                setattr(part, name, EightBitLinear.random(inputs, outputs, DTYPES[kind], device))
    for part in list(decoder.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            made = torch.ones if name.endswith("norm") else torch.randn
            value = made(parameter.shape, dtype=dtype, device=device)
            setattr(part, name, nn.Parameter(value if name.endswith("norm") else value * 0.02, requires_grad=False))
    decoder.rotations = rotation_table(config, dtype, device)
    return decoder


def stream_products(decoder: Decoder) -> None:
    """Let every plain product of a decoder on CUDA stream its weights through few rows, in place."""
    for part in list(decoder.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Linear):
                setattr(part, name, StreamedLinear(child))


def multiply_twin(x: Tensor, weight: Tensor, scale: Tensor | None, residual: Tensor | None) -> Tensor:
    """Slice by slice, so that only a slice is ever wide."""
    wide = torch.ones(len(weight), device=x.device) if scale is None else scale
    parts = [F.linear(x, part.to(x.dtype)) * own.to(x.dtype) for part, own in zip(*_slices(weight, wide), strict=True)]
    product = torch.cat(parts, dim=-1)
    return product if residual is None else residual + product


def multiply_fused(
    x: Tensor, weight: Tensor, scale: Tensor | None, residual: Tensor | None, columns: int = 0, warps: int = 4
) -> Tensor:
    """The kernel, for at most FEW_ROWS rows."""
    rows, inputs = x.shape
    outputs = len(weight)
    block = max(16, triton.next_power_of_2(rows))
    columns = columns or (32 if block == 16 else 64)
    depth = 256 if weight.element_size() == 1 and block < 64 else 128  # bytes of a row that are read together
    if outputs // columns < 264:  # twice the multiprocessors of a large GPU
        columns = max(16, columns // 2)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    _product[(triton.cdiv(outputs, columns), 1)](
        x.contiguous(), weight, out if scale is None else scale, out if residual is None else residual.contiguous(),
        out, rows, outputs, inputs, ROWS=block, COLUMNS=columns, DEPTH=depth,
        SCALED=scale is not None, ADD=residual is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_stages=4, num_warps=warps,
    )  # fmt: skip
    return out


def _multiply(x: Tensor, weight: Tensor, scale: Tensor | None, residual: Tensor | None) -> Tensor:
    if x.is_cuda and x.dim() == 2 and len(x) <= FEW_ROWS:
        return multiply_fused(x, weight, scale, residual)
    return multiply_twin(x, weight, scale, residual)


def _slices(weight: Tensor, scale: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return torch.split(weight, SLICE), torch.split(scale, SLICE)


def _round(values: Tensor, dtype: torch.dtype) -> Tensor:
    values = values.clamp(-MOST[dtype], MOST[dtype])
    return (values.round() if dtype == torch.int8 else values).to(dtype)


if triton is not None:

    @triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
    def _product(  # type: ignore[no-untyped-def]
        x, weight, scale, residual, out, rows, outputs, inputs,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
        SCALED: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        row = tl.arange(0, ROWS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        k = tl.arange(0, DEPTH)
        real, inside = row < rows, column < outputs
        here = x + row[:, None] * inputs + k[None, :]
        there = weight + column[None, :].to(tl.int64) * inputs + k[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, inputs, DEPTH):
            left = inputs - start
            given = tl.load(here + start, mask=real[:, None] & (k < left)[None, :], other=0.0)
            read = tl.load(there + start, mask=inside[None, :] & (k < left)[:, None], other=0.0)
            total = tl.dot(given, read.to(given.dtype), total, input_precision=PRECISION)
        if SCALED:
            total = total * tl.load(scale + column, mask=inside, other=0.0)[None, :]
        target = row[:, None] * outputs + column[None, :]
        shown = real[:, None] & inside[None, :]
        answer = total.to(out.dtype.element_ty)
        if ADD:
            before = tl.load(residual + target, mask=shown, other=0.0)
            answer = (before.to(tl.float32) + answer.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + target, answer, mask=shown)
