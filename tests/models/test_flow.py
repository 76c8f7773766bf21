"""Kernels of a stream's way through layers against torch: on CUDA, or in Triton's interpreter.

The interpreter knows no products of bf16, so there those are left to CUDA.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from foredraft.models import Decoder, ModelConfig, flow, narrow, norm, random_decoder
from foredraft.models.attend import AttendHeads
from foredraft.models.flow import Flow

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or the interpreter")
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.bfloat16]
NEAR = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # of the largest result
CONFIG = ModelConfig("llama", 50, 96, 3, 6, 2, 16, 70, max_position=64)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def near(found: Tensor, expected: Tensor) -> bool:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return bool((found - expected).abs().max() <= NEAR[found.dtype] * expected.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows,channels", [(1, 96), (5, 300), (2, 64)])
def test_norms(rows: int, channels: int, dtype: torch.dtype) -> None:
    wide, branch, weight = (
        noise(*shape, dtype=dtype) for shape in ((rows, 2 * channels), (rows, channels), (channels,))
    )
    x = wide[:, channels:]  # a part of longer rows
    total, normed = norm.add_norm_fused(x, branch, weight, 1e-5)
    summed, twin = norm.add_norm_twin(x, branch, weight, 1e-5)
    assert near(total, summed) and near(normed, twin)
    assert near(norm.norm_fused(x, weight, 1e-5), norm.norm_twin(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("channels,inner", [(96, 70), (130, 200)])
def test_narrow_products(rows: int, channels: int, inner: int, dtype: torch.dtype) -> None:
    x, gain = noise(rows, channels, dtype=dtype) * 3, noise(channels, dtype=dtype)
    up = noise(2 * inner, channels, dtype=dtype) * channels**-0.5
    down = noise(channels, inner, dtype=dtype) * inner**-0.5
    assert near(narrow.normed_product(x, gain, 1e-5, up), narrow.normed_product_twin(x, gain, 1e-5, up))
    gate = narrow.normed_gate_twin(x, gain, 1e-5, up)
    assert near(narrow.normed_gate(x, gain, 1e-5, up), gate)
    assert near(narrow.product_added(gate, down, x), narrow.product_added_twin(gate, down, x))


class Mixing(AttendHeads):
    """Stands for attention: rows take from one another, and layers do so differently."""

    def from_heads(self, layer: int, heads: Tensor) -> Tensor:
        return (heads[:, :6].cumsum(0) * (layer + 1) + heads[:, 6:8].repeat(1, 3, 1)).flatten(1)


def run(model: Decoder, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        stream, taps = model.run(x, torch.zeros(len(x), dtype=torch.int64, device=DEVICE), Mixing(), taps=range(4))
    return [stream, *(taps[tap] for tap in range(4))]


@pytest.mark.parametrize("way", ["narrow", "wide"])
@pytest.mark.parametrize("rows", [1, 5])
def test_streams_are_those_of_the_layers(rows: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps included: each is the whole stream that enters its layer."""
    model = random_decoder(CONFIG, device=DEVICE)
    for parameter in model.parameters():
        parameter.mul_(4.0)
    x = noise(rows, 96)
    monkeypatch.setattr("foredraft.models.decoder.flow_of", lambda attend, x: None)
    expected = run(model, x)
    monkeypatch.setattr("foredraft.models.decoder.flow_of", lambda attend, x: Flow(attend))
    monkeypatch.setattr(flow, "fits", lambda x, *products: way == "narrow")
    monkeypatch.setattr(norm, "_quick", lambda x, weight: True)
    assert all(near(found, twin) for found, twin in zip(run(model, x), expected, strict=True))


def test_what_is_not_narrow() -> None:
    model = random_decoder(CONFIG)
    assert not narrow.fits(noise(1, 96).cpu(), model.layers[0].out)  # not on a GPU
    assert narrow._narrow(model.layers[0].out, torch.float32)
    assert not narrow._narrow(model.layers[0].out, torch.bfloat16) and not narrow._narrow(object(), torch.float32)
