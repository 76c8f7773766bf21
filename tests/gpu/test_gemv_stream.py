"""Streamed weights on CUDA: exact where numbers are, the same bits every time, near the reference everywhere."""

from __future__ import annotations

import pytest
import torch

from foredraft.models.layers.gemv_stream import Plan, multiply_fused, multiply_reference
from foredraft.models.layers.int8_linear import DTYPES, EightBitLinear

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
BF16 = torch.bfloat16
CASES = [
    (1, Plan(64, 256, 1, 4, 4)),
    (5, Plan(32, 128, 8, 2, 3)),
    (16, Plan(128, 64, 2, 4, 3)),  # through wgmma
    (32, Plan(128, 128, 4, 2, 3)),
    (33, Plan(64, 128, 2, 2, 3)),
]


@pytest.mark.parametrize(("rows", "plan"), CASES, ids=str)
@pytest.mark.parametrize("kind", DTYPES)
def test_every_weight_is_turned_wide_exactly(kind: str, rows: int, plan: Plan) -> None:
    """A row of the identity picks one input of every output."""
    codes = torch.arange(256, device="cuda").to(torch.uint8).view(DTYPES[kind])
    codes = torch.where(codes.to(BF16).isnan(), torch.zeros_like(codes, dtype=BF16), codes.to(BF16)).to(DTYPES[kind])
    weight = torch.stack([codes.view(torch.uint8).roll(n) for n in range(1024)]).repeat(1, 4).view(DTYPES[kind])
    x = torch.eye(1024, device="cuda", dtype=BF16)[torch.arange(rows, device="cuda") * 31 % 1024]
    found = multiply_fused(x, weight, torch.ones(1024, device="cuda"), None, plan)
    assert torch.equal(found, multiply_reference(x, weight, None, None))


@pytest.mark.parametrize("kind", ["int8", "wide"])
@pytest.mark.parametrize("rows", [1, 26, 64])
def test_rows_are_near_the_twin_and_always_the_same(kind: str, rows: int) -> None:
    """Two products of other shapes one after the other, captured, played many times; with a residual."""
    torch.manual_seed(0)
    sizes = [(4096, 1536), (700, 300)]
    made = [EightBitLinear.random(i, o, torch.int8, "cuda") for i, o in sizes]
    wide = [torch.randn(o, i, device="cuda", dtype=BF16) * 0.02 for i, o in sizes]
    x = [torch.randn(rows, i, device="cuda", dtype=BF16) for i, _ in sizes]
    before = [torch.randn(rows, o, device="cuda", dtype=BF16) for _, o in sizes]

    def weights(n: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        return (wide[n], None) if kind == "wide" else (made[n].weight, made[n].scale)

    def play() -> list[torch.Tensor]:
        return [multiply_fused(x[n], *weights(n), before[n], arrivals=made[n].arrivals) for n in range(len(sizes))]

    first = [out.clone() for out in play()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = play()
    for _ in range(50):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(first, outs, strict=True))
    for n, out in enumerate(first):
        expected = multiply_reference(x[n].float(), *weights(n), before[n].float())
        assert (out.float() - expected).abs().max() < 0.02 * expected.abs().max()
        assert not made[n].arrivals.any()


def test_a_row_is_its_own_affair() -> None:
    """Its neighbours change nothing of it; another number of rows changes no more than the rounding."""
    made = EightBitLinear.random(4096, 1024, torch.int8, "cuda")
    x = torch.randn(26, 4096, device="cuda", dtype=BF16)
    alone, among = made(x[:1]), made(x)
    other = made(torch.cat((x[:1], torch.randn_like(x[1:]) * 100)))
    assert torch.equal(among[0], other[0])
    assert (alone[0].float() - among[0].float()).abs().max() < 0.01 * alone.float().abs().max()
