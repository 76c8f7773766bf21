"""Fused products of narrow models on CUDA at the sizes of SmolLM2-135M: near the references, and a row's own affair."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from foredraft.kernels.gemv_narrow_rows import BUCKETS
from foredraft.models.layers import gemv_narrow as narrow

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
BF16 = torch.bfloat16
Normed = Callable[[Tensor, Tensor, float, Tensor], Tensor]
CHANNELS, QKV, INNER, LAYERS = 576, 960, 1536, 6


def noise(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).to("cuda", dtype)


class Layers:
    """Products of some layers in their order; the middle of the queries' product stands for attention."""

    def __init__(self, dtype: torch.dtype = BF16) -> None:
        shapes = ((QKV, CHANNELS), (CHANNELS, CHANNELS), (2 * INNER, CHANNELS), (CHANNELS, INNER))
        self.gain = 1 + noise(CHANNELS, dtype=dtype)
        self.weights = [[noise(*shape, dtype=dtype).roll(layer, 0) for shape in shapes] for layer in range(LAYERS)]

    def wide(self) -> Layers:
        """The same weights in float32."""
        made = Layers(torch.float32)
        made.gain, made.weights = self.gain.float(), [[weight.float() for weight in layer] for layer in self.weights]
        return made

    def fused(self, x: Tensor) -> Tensor:
        return self._through(x, narrow.normed_product, narrow.normed_gate, narrow.product_added)

    def reference(self, x: Tensor) -> Tensor:
        return self._through(
            x, narrow.normed_product_reference, narrow.normed_gate_reference, narrow.product_added_reference
        )

    def _through(self, x: Tensor, product: Normed, gate: Normed, added: Callable[..., Tensor]) -> Tensor:
        for qkv, out, up, down in self.weights:
            x = added(product(x, self.gain, 1e-5, qkv)[:, :CHANNELS], out, x)
            x = added(gate(x, self.gain, 1e-5, up), down, x)
        return x


@pytest.mark.parametrize(("dtype", "most"), [(BF16, 0.02), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 9, 17, 33, 64])
def test_layers_are_near_the_twin_and_always_the_same(rows: int, dtype: torch.dtype, most: float) -> None:
    """Captured and played many times, which a kernel that begins too early would not survive."""
    layers, x = Layers(dtype), noise(rows, CHANNELS, dtype=dtype) * CHANNELS**0.5
    first, expected = layers.fused(x), layers.reference(x)
    true = layers.wide().reference(x.float())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = layers.fused(x)
    for _ in range(30):
        again.zero_()
        graph.replay()
        assert torch.equal(first, again)
    far, twin_far = ((found.float() - true).abs().max().item() for found in (first, expected))
    assert far <= most * true.abs().max().item(), (far, twin_far)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_row_is_its_own_affair(bucket: int) -> None:
    """Within a bucket neither the neighbours nor their number change a bit of it."""
    layers, x = Layers(), noise(bucket, CHANNELS) * CHANNELS**0.5
    among, fewer = layers.fused(x), layers.fused(x[:-1])
    other = layers.fused(torch.cat((x[:1], torch.randn_like(x[1:]) * 100)))
    assert torch.equal(among[0], other[0]) and torch.equal(among[:-1], fewer)
    assert torch.equal(layers.fused(x.roll(1, 0)).roll(-1, 0), among)
