"""Low-rank deltas: nothing at first, the same merged as beside the weights, and the same from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from foredraft.errors import ForedraftError, UsageError
from foredraft.models import Decoder, ModelConfig, random_decoder
from foredraft.models.heads import Identity, read_spec, read_weights, save_head
from foredraft.models.heads.delta import KIND, describe, first_layers
from foredraft.models.layers.lora import PRODUCTS, Delta, merge, with_delta

from .conftest import forward

IDS = torch.tensor([1, 5, 9, 2, 7, 7, 3])


def toy(family: str = "llama", seed: int = 0) -> Decoder:
    config = ModelConfig(
        family, 64, 32, 3, 4, 2, 8, 48, tied_head=True, qkv_bias=family == "qwen2", qk_norm=family == "qwen3"
    )
    made = random_decoder(config, seed=seed)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data *= 5
    return made


def trained(decoder: Decoder, rank: int = 4) -> Delta:
    """A delta whose every factor says something."""
    delta = Delta(decoder, rank, scale=1.5)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in delta.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return delta


def test_a_fresh_delta_changes_nothing_and_can_be_taken_out() -> None:
    decoder = toy()
    before = forward(decoder, IDS)
    delta = Delta(decoder, 4)
    assert torch.equal(forward(decoder, IDS), before)
    delta.fill({name: value + 0.1 for name, value in delta.factors().items()})
    assert not torch.allclose(forward(decoder, IDS), before, atol=0.1)
    delta.remove()
    assert torch.equal(forward(decoder, IDS), before)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_merged_says_what_beside_says(family: str) -> None:
    decoder = toy(family)
    delta = trained(decoder)
    beside = forward(decoder, IDS).detach()
    plain = toy(family)
    apart = (forward(plain, IDS) - beside).abs().max()
    merge(plain, delta.factors(), delta.scale)
    assert (forward(plain, IDS) - beside).abs().max() < 1e-4 < 0.01 * apart


def test_only_the_factors_learn() -> None:
    decoder = toy()
    delta = trained(decoder)
    forward(decoder, IDS).square().mean().backward()  # type: ignore[no-untyped-call]
    own = dict(delta.named_parameters())
    assert len(own) == 2 * len(PRODUCTS) * 3 and all(p.grad is not None and p.grad.any() for p in own.values())
    others = [p for p in decoder.parameters() if not any(p is q for q in own.values())]
    assert others and all(p.grad is None and not p.requires_grad for p in others)


def test_a_merge_is_rounded_once() -> None:
    """W + s BᵀA in float32, then the cast: not a sum of rounded parts."""
    delta = trained(toy())
    weights = {name: value.detach().clone() for name, value in toy().named_parameters()}
    name = "layers.1.down"
    a, b = (delta.factors()[f"{name}.{part}"] for part in "ab")
    want = weights[f"{name}.weight"] + delta.scale * (b.t() @ a)
    found = with_delta(weights, delta.factors(), delta.scale)[f"{name}.weight"]
    assert torch.equal(found, want) and found.dtype == torch.float32
    assert torch.equal(weights[f"{name}.weight"], toy().get_parameter(f"{name}.weight"))


@pytest.mark.parametrize(("storage", "error"), [("int8", 1 / 250), ("bf16", 1 / 250)])
def test_from_the_disk(storage: str, error: float, tmp_path: Path) -> None:
    decoder = toy()
    delta = trained(decoder)
    spec = describe(delta, KIND, "toy", Identity.of(decoder.config, "x"))
    save_head(tmp_path / "delta", delta, spec, {}, {}, storage)
    found = read_weights(tmp_path / "delta")
    assert read_spec(tmp_path / "delta") == spec and spec.extra == {"rank": 4, "scale": 1.5, "base": "toy"}
    assert set(found) == set(delta.factors())
    for name, value in delta.factors().items():
        assert (found[name] - value).abs().max() <= error * value.abs().max()


def test_the_file_of_the_default_model_is_small(tmp_path: Path) -> None:
    """Rows are ranks, so int8 spends few scales: rank 8 on SmolLM2's shape takes a byte a parameter and little more."""
    config = ModelConfig("llama", 64, 576, 30, 9, 3, 64, 1536, tied_head=True)
    decoder = Decoder.empty(config)
    delta = Delta(decoder, 8)
    save_head(tmp_path / "d", delta, describe(delta, KIND, "smollm2", Identity.of(config, "x")), {}, {})
    parameters = sum(p.numel() for _, p in delta.named_parameters())
    assert parameters == 2_027_520
    assert (tmp_path / "d" / "weights.safetensors").stat().st_size < 1.03 * parameters


def test_what_does_not_fit_is_refused() -> None:
    delta = trained(toy())
    other = random_decoder(ModelConfig("llama", 64, 48, 3, 4, 2, 12, 48, tied_head=True))
    with pytest.raises(ForedraftError, match="does not fit this model"):
        merge(other, delta.factors(), 1.0)
    fewer = random_decoder(ModelConfig("llama", 64, 32, 2, 4, 2, 8, 48, tied_head=True))
    with pytest.raises(ForedraftError, match=r"layers\.2\.qkv does not fit"):
        merge(fewer, delta.factors(), 1.0)
    with pytest.raises(UsageError, match="at least 1"):
        Delta(toy(), 0)
    packed = toy()
    packed.layers[0].out = nn.Identity()
    with pytest.raises(UsageError, match="packed=False"):
        Delta(packed, 2)


def test_the_first_layers_of_a_decoder_by_name() -> None:
    decoder = toy()
    found = first_layers(decoder, 2)
    assert set(found) == {"norm"} | {n for n, _ in decoder.named_parameters() if n.startswith(("layers.0", "layers.1"))}
