"""Weights of eight bits: near the wide ones, and built without them."""

from __future__ import annotations

import pytest
import torch

from foredraft.models import random_decoder, shape
from foredraft.models.layers.int8_linear import DTYPES, EightBitLinear, eight_bit_decoder
from foredraft.models.layers.linear import Linear
from foredraft.runtime import Rows
from foredraft.runtime.cuda.executor import GraphExecutor


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_rounding_is_small(kind: str, bias: bool) -> None:
    torch.manual_seed(0)
    linear = Linear(96, 40, torch.float32, "cpu", bias)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter)
    rounded = EightBitLinear.of(linear, DTYPES[kind])
    x, residual = torch.randn(3, 96), torch.randn(3, 40)
    expected = linear(x).detach()
    off = (rounded(x) - expected).norm() / expected.norm()
    assert off < (0.01 if kind == "int8" else 0.05)
    assert (rounded.add_to(residual, x) - residual - rounded(x)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", DTYPES)
def test_a_decoder_runs(kind: str) -> None:
    torch.manual_seed(1)
    decoder = eight_bit_decoder(shape("tiny"), kind, torch.float32, "cpu")
    weights = [module for module in decoder.modules() if isinstance(module, EightBitLinear)]
    assert len(weights) == 4 * shape("tiny").num_layers + 1
    assert all(abs(float((w.weight.float() * w.scale[:, None]).std()) / 0.02 - 1) < 0.15 for w in weights)
    executor = GraphExecutor(decoder, 1, 64)
    executor.prefill([0], [[1, 2, 3]])
    assert torch.isfinite(executor.forward(Rows.chains([0], [[4, 5]], executor.device)).logits).all()
    assert decoder.rotations.equal(random_decoder(shape("tiny")).rotations)
