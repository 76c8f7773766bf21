"""Products that take the place of `Linear` on a CPU."""

from __future__ import annotations

import pytest
import torch

from foredraft.models.layers.linear import FEW_ROWS, Linear, PackedLinear, RoundedLinear, can_pack

needs_bf16 = pytest.mark.skipif(not can_pack(torch.zeros(1, dtype=torch.bfloat16)), reason="needs bf16 instructions")


def linear(bias: bool) -> Linear:
    torch.manual_seed(0)
    made = Linear(64, 48, torch.bfloat16, "cpu", bias)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return made.requires_grad_(False)


@needs_bf16
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 30])
def test_rounded_products_are_near_the_true_ones(rows: int, bias: bool) -> None:
    true = linear(bias)
    rounded, packed = RoundedLinear(true), PackedLinear(true)
    x, residual = torch.randn(rows, 64, dtype=torch.bfloat16), torch.randn(rows, 48, dtype=torch.bfloat16)
    size = true(x).float().abs().mean()
    assert (rounded(x) - true(x)).float().abs().mean() < 0.02 * size
    assert (rounded.add_to(residual, x) - packed.add_to(residual, x)).float().abs().mean() < 0.03 * size
    assert torch.equal(rounded(x), packed(x)) == (rows > FEW_ROWS)


@needs_bf16
def test_rounded_products_keep_the_shape() -> None:
    assert RoundedLinear(linear(True))(torch.randn(2, 1, 64, dtype=torch.bfloat16)).shape == (2, 1, 48)
