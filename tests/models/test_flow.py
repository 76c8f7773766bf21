"""A stream's way through layers, and its norms, against torch: on CUDA, or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from foredraft.models import Decoder, ModelConfig, flow, norm, random_decoder
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


class Mixing(AttendHeads):
    """Stands for attention: rows take from one another, and layers do so differently."""

    def from_heads(self, layer: int, heads: Tensor) -> Tensor:
        return (heads[:, :6].cumsum(0) * (layer + 1) + heads[:, 6:8].repeat(1, 3, 1)).flatten(1)


def run(model: Decoder, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        stream, taps = model.run(x, torch.zeros(len(x), dtype=torch.int64, device=DEVICE), Mixing(), taps=range(4))
    return [stream, *(taps[tap] for tap in range(4))]


@pytest.mark.parametrize("way", ["narrow", "wide", "mixed"])
@pytest.mark.parametrize("rows", [1, 5])
def test_streams_are_those_of_the_layers(rows: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps included: each is the whole stream that enters its layer. mixed: the second layer alone is narrow."""
    model = random_decoder(CONFIG, device=DEVICE)
    for parameter in model.parameters():
        parameter.mul_(4.0)
    x = noise(rows, 96)
    monkeypatch.setattr("foredraft.models.decoder.flow_of", lambda attend, x: None)
    expected = run(model, x)
    monkeypatch.setattr("foredraft.models.decoder.flow_of", lambda attend, x: Flow(attend))
    chosen = {"narrow": [0, 1, 2], "wide": [], "mixed": [1]}[way]
    small = [part for index in chosen for part in model.layers[index].children()]
    monkeypatch.setattr(flow, "fits", lambda x, *products: products[0] in small)
    monkeypatch.setattr(norm, "_quick", lambda x, weight: True)
    assert all(near(found, twin) for found, twin in zip(run(model, x), expected, strict=True))
