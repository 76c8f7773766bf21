"""A stream's way through layers, and its norms, against torch: on CUDA, or in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from foredraft.kernels import norm
from foredraft.models import Decoder, random_decoder
from foredraft.models.decoder import replace_products
from foredraft.models.layers import fused_pass as flow
from foredraft.models.layers.attention_protocol import AttendHeads
from foredraft.models.layers.fused_pass import FusedPass
from foredraft.models.layers.gemv_stream import StreamedLinear

from .scene import CONFIG, DEVICE, DTYPES, RUNS, near, noise

pytest.importorskip("triton")
pytestmark = RUNS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows,channels", [(1, 96), (5, 300), (2, 64)])
def test_norms(rows: int, channels: int, dtype: torch.dtype) -> None:
    wide, branch, weight = (
        noise(*shape, dtype=dtype) for shape in ((rows, 2 * channels), (rows, channels), (channels,))
    )
    x = wide[:, channels:]  # a part of longer rows
    total, normed = norm.add_norm_fused(x, branch, weight, 1e-5)
    summed, reference = norm.add_norm_reference(x, branch, weight, 1e-5)
    assert near(total, summed) and near(normed, reference)
    assert near(norm.norm_fused(x, weight, 1e-5), norm.norm_reference(x, weight, 1e-5))


class Mixing(AttendHeads):
    """Stands for attention: rows take from one another, and layers do so differently."""

    def from_heads(self, layer: int, heads: Tensor, bias: Tensor | None = None) -> Tensor:
        heads = heads if bias is None else heads + bias.view(heads.shape[1:])
        return (heads[:, :6].cumsum(0) * (layer + 1) + heads[:, 6:8].repeat(1, 3, 1)).flatten(1)


def run(model: Decoder, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        stream, taps = model.run(x, torch.zeros(len(x), dtype=torch.int64, device=DEVICE), Mixing(), taps=range(4))
    return [stream, *(taps[tap] for tap in range(4))]


@pytest.mark.parametrize("way", ["narrow", "wide", "mixed", "all but down"])
@pytest.mark.parametrize(("rows", "biased"), [(1, True), (5, False)])
def test_streams_are_those_of_the_layers(rows: int, biased: bool, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps included: each is the whole stream that enters its layer. mixed: the second layer alone is narrow."""
    model = random_decoder(replace(CONFIG, qkv_bias=biased), device=DEVICE)
    replace_products(model.layers, StreamedLinear)
    for parameter in model.parameters():
        parameter.mul_(4.0)
    x = noise(rows, 96)
    monkeypatch.setattr("foredraft.models.decoder.fused_pass_of", lambda attend, x: None)
    expected = run(model, x)
    monkeypatch.setattr("foredraft.models.decoder.fused_pass_of", lambda attend, x: FusedPass(attend))
    chosen = {"wide": [], "mixed": [1]}.get(way, [0, 1, 2])
    small = [part for index in chosen for part in model.layers[index].children()]
    small = [part for part in small if way != "all but down" or all(part is not own.down for own in model.layers)]
    monkeypatch.setattr(
        flow, "fits", lambda x, *parts, biased=False: parts[0] in small and (biased or parts[0].bias is None)
    )
    monkeypatch.setattr(norm, "_quick", lambda x, weight: True)
    assert all(near(found, reference) for found, reference in zip(run(model, x), expected, strict=True))
