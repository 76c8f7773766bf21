"""Products of a narrow model for few rows on a GPU, each fused with what surrounds it: the norm before, the gate or the
residual sum after.

A narrow matrix is read in less time than a launch takes, so a layer's pace is its number of kernels. Every program
works the norm out again from the row it reads anyway: (x / rms(x) * gain) W = (x * gain) W / rms(x). Results are summed
in float32 and rounded where the references round, the normed row excepted. The kernel goes row by row, without tensor
cores: one row, or two of a model that is less narrow. Several rows of a narrow one go to `kernels.gemv_narrow_rows`.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...kernels.activation import gated_reference
from ...kernels.early_launch import early
from ...kernels.gemv_narrow_rows import MOST, rows_product
from ...kernels.gemv_narrow_rows import MOST_INPUTS as MOST_INPUTS_OF_ROWS
from ...kernels.norm import norm, norm_reference
from .gemv_stream import StreamedLinear
from .linear import Linear

try:
    import triton

    from ...kernels.row_gemv import row_product
except ImportError:  # a CPU build of torch comes without it
    triton = None

WIDEST, WIDEST_ALONE = 1024, 2048  # channels of a model that counts as narrow: for several rows, and for one or two
ALONE = 2  # rows that read the matrix one beside the other: the second finds it in the cache
MOST_INPUTS = 8192
MOST_NUMBERS = 32768  # weights that a program holds at once
COLUMNS, GATE_COLUMNS = 8, 4  # outputs a program, and where each of them needs two sums


def fits(x: Tensor, *products: object, biased: bool = False) -> bool:
    """Whether these products go this way for x [T, ..]; biased: without their biases, which somebody else adds."""
    known = triton is not None and x.is_cuda and x.dtype in (torch.bfloat16, torch.float32) and 1 <= len(x) <= MOST
    return known and not torch.is_grad_enabled() and all(_narrow(own, x.dtype, len(x), biased) for own in products)


def _narrow(product: object, dtype: torch.dtype, rows: int, biased: bool = False) -> bool:
    if type(product) not in (Linear, StreamedLinear) or not (biased or product.bias is None):  # type: ignore[attr-defined]
        return False
    weight: Tensor = product.weight  # type: ignore[attr-defined]
    small = _goes_together(weight) or (rows <= ALONE and _goes_alone(weight))
    return small and weight.dtype == dtype and weight.is_contiguous()


def _goes_alone(weight: Tensor) -> bool:
    """Whether one row, or two, may be multiplied by the kernel here."""
    return min(weight.shape) <= WIDEST_ALONE and weight.shape[1] <= MOST_INPUTS


def _goes_together(weight: Tensor) -> bool:
    """Whether several rows are multiplied on tensor cores."""
    return min(weight.shape) <= WIDEST and weight.shape[1] <= MOST_INPUTS_OF_ROWS


def normed_product(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """norm(x) @ weight.T."""
    return _launch(x, weight, gain, eps, None, gates=False)


def normed_gate(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """silu(gate) * up of norm(x) @ weight.T = [gate, up]."""
    return _launch(x, weight, gain, eps, None, gates=True)


def product_added(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """residual + x @ weight.T."""
    return _launch(x, weight, None, 0.0, residual, gates=False)


def norm_and_multiply(product: nn.Module, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """product(norm(x)), in one kernel where it fits."""
    if fits(x, product):
        return normed_product(x, gain, eps, cast(Tensor, product.weight))
    found: Tensor = product(norm(x, gain, eps))
    return found


def multiply_and_add(product: Linear, x: Tensor, residual: Tensor) -> Tensor:
    """residual + product(x), in one kernel where it fits."""
    return product_added(x, product.weight, residual) if fits(x, product) else product.add_to(residual, x)


def normed_product_reference(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    return F.linear(norm_reference(x, gain, eps), weight)


def normed_gate_reference(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    return gated_reference(normed_product_reference(x, gain, eps, weight))


def product_added_reference(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return residual + F.linear(x, weight)


def _launch(x: Tensor, weight: Tensor, gain: Tensor | None, eps: float, residual: Tensor | None, gates: bool) -> Tensor:
    rows, inputs = x.shape
    if rows > 1 and _goes_together(weight):
        return rows_product(x, weight, gain, eps, residual, gates)
    outputs = len(weight) // (2 if gates else 1)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    given = (x.contiguous(), weight, out if gain is None else gain, out if residual is None else residual, out)
    options = {"INPUTS": inputs, "OUTPUTS": outputs, "NORM": gain is not None, "GATE": gates}
    options |= {"ADD": residual is not None, **early(x)}
    depth = triton.next_power_of_2(inputs)
    columns, warps = _share(depth, gates)
    row_product[(rows, triton.cdiv(outputs, columns))](
        *given, eps, **options, COLUMNS=columns, DEPTH=depth, num_warps=warps
    )
    return out


def _share(depth: int, gates: bool) -> tuple[int, int]:
    """Outputs and warps of a program; by measurements on an H200 with 576 to 8192 inputs."""
    columns = min(GATE_COLUMNS if gates else COLUMNS, MOST_NUMBERS // depth)
    return columns, max(1, min(16, depth // (256 if depth >= 2048 else 128)))
