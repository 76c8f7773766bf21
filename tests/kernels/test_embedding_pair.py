"""Pairs of tokens and features: what a head looks up by itself, and the kernels on CUDA or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.kernels import embedding_pair as p
from foredraft.models import ModelConfig, random_decoder
from foredraft.models.heads import Eagle3Head, EagleHead, FeatureHead, GriffinHead, HeadSpec, Identity

from .scene import CAN_RUN, DEVICE, DTYPES, noise

KERNELS = p.triton is not None and CAN_RUN
CONFIG = ModelConfig("llama", 50, 48, 2, 6, 2, 8, 70, max_position=64)
# sequences, tokens of each, features of each
CASES = [(1, 8, 1), (1, 1, 1), (3, 5, 8)]


def numbers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(below)).to(DEVICE)


@pytest.mark.parametrize("kind", [EagleHead, Eagle3Head, GriffinHead])
@torch.no_grad()
def test_a_head_looks_up_what_it_would_be_given(kind: type[FeatureHead]) -> None:
    target = random_decoder(CONFIG)
    head = kind(target, HeadSpec("any", Identity.of(CONFIG, "-"), 50, (1,)), torch.arange(50))
    token, above, features = numbers(50, 2, 5), numbers(4, 2, 5), noise(2, 4, 48)
    chosen = torch.stack([features[b, above[b]] for b in range(2)]).to("cpu")
    expected = head.join(head.embed(token.flatten().cpu()), chosen.flatten(0, 1))
    assert torch.equal(head.look_up(token.cpu(), features.cpu(), above.cpu()), expected)
    assert torch.equal(head.look_up(token.cpu(), chosen), expected)


@pytest.mark.skipif(not KERNELS, reason="needs CUDA or the interpreter")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs(case: tuple[int, int, int], dtype: torch.dtype) -> None:
    batch, width, rooms = case
    embedding, wide = noise(40, 48, dtype=dtype), noise(batch, rooms, 96, dtype=torch.bfloat16)
    features = wide.float()[:, :, 48:]  # a part of longer rows, in its own precision, which the interpreter cuts off
    token, above = numbers(40, batch, width), numbers(rooms, batch, width)
    given = token, embedding, features, above
    assert torch.equal(p.pairs_fused(*given), p.pairs_reference(*given))
    whole = features.expand(batch, width, 48) if rooms == 1 else features[:, :width]
    assert torch.equal(p.pairs_fused(token, embedding, whole), p.pairs_reference(token, embedding, whole))


@pytest.mark.skipif(not KERNELS, reason="needs CUDA or the interpreter")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
def test_norms_of_halves(rows: int, dtype: torch.dtype) -> None:
    x, first, second = noise(rows, 97 * 2, dtype=dtype), noise(97, dtype=dtype), noise(98, dtype=dtype)[1:]
    found, reference = p.norm_halves_fused(x, first, second, 1e-5), p.norm_halves_reference(x, first, second, 1e-5)
    near = {torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype] * reference[0].abs().max()
    assert found[0].dtype == dtype and (found[0] - reference[0]).abs().max() <= near
    assert torch.equal(found[1], reference[1])
