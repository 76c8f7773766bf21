"""Our decoder against Hugging Face's, family by family: logits, taps, layer ranges, gradients, sharing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import UsageError
from foredraft.models import Decoder, Tokenizer, load_decoder, pack, random_decoder, shallow, shape

from .conftest import Causal, forward

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3, "head_dim": 16}),
    "llama linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", {"use_sliding_window": False, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "phi3": ("phi3", {"sliding_window": None, "pad_token_id": 0}),
    "mixtral": ("mixtral", {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3 moe": ("qwen3_moe", {"head_dim": 16} | QWEN_EXPERTS),
    "qwen3 moe normed": ("qwen3_moe", {"head_dim": 16, "norm_topk_prob": True} | QWEN_EXPERTS),
}


def hf_model(case: str, folder: Path) -> Any:
    """A random Hugging Face model whose biases and norms are not the trivial ones, saved into `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family, extra = CASES[case]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(SMALL | extra))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.1))
    model.save_pretrained(folder)
    return model


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Decoder]:
    model = hf_model(request.param, tmp_path)
    return model, load_decoder(tmp_path)


@torch.no_grad()
def test_logits_and_taps_equal_hugging_face(pair: tuple[Any, Decoder]) -> None:
    model, decoder = pair
    ids = torch.randint(0, 97, (200,), generator=torch.Generator().manual_seed(2))
    expected = model(ids[None], output_hidden_states=True)
    layers = decoder.config.num_layers
    x, taps = decoder.run(decoder.embed(ids), torch.arange(len(ids)), Causal(), taps=range(layers + 1))
    features = decoder.finish(x)
    assert (decoder.logits(features) - expected.logits[0]).abs().max() < 1e-4
    for index in range(layers):
        assert (taps[index] - expected.hidden_states[index][0]).abs().max() < 1e-4
    # Hugging Face's last hidden state is normed already
    assert (decoder.finish(taps[layers]) - expected.hidden_states[layers][0]).abs().max() < 1e-4


@torch.no_grad()
def test_bf16_is_as_near_to_fp32_as_hugging_face(pair: tuple[Any, Decoder], tmp_path: Path) -> None:
    model, decoder = pair
    ids = torch.arange(60)
    exact = forward(decoder, ids)
    ours = forward(load_decoder(tmp_path, torch.bfloat16), ids).float()
    theirs = model.to(torch.bfloat16)(ids[None]).logits[0].float()
    assert (ours - exact).abs().mean() < 1.3 * (theirs - exact).abs().mean()


@torch.no_grad()
def test_default_model_equals_hugging_face(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    decoder, tokenizer = load_decoder(smollm2), Tokenizer.from_folder(smollm2)
    ids = torch.tensor(tokenizer.encode("The Commune of 1871 lasted 72 days.\n\n1. Paris\n2. Lyon\n" * 3))
    expected = model(ids[None], output_hidden_states=True)
    x, taps = decoder.run(decoder.embed(ids), torch.arange(len(ids)), Causal(), taps=(1, 15))
    assert (decoder.logits(decoder.finish(x)) - expected.logits[0]).abs().max() < 2e-4  # logits reach 44
    for index, tap in taps.items():
        reference = expected.hidden_states[index][0]
        assert (tap - reference).abs().max() < 1e-5 * reference.abs().max()


@torch.no_grad()
def test_layer_ranges_compose() -> None:
    decoder = random_decoder(shape("tiny"))
    x, positions = decoder.embed(torch.arange(9)), torch.arange(9)
    whole, _ = decoder.run(x, positions, Causal())
    attend = Causal()
    half, taps = decoder.run(x, positions, attend, range(1), taps=(0, 1, 2))
    rest, _ = decoder.run(half, positions, attend, range(1, 2))
    assert torch.equal(rest, whole)
    assert sorted(taps) == [0, 1]
    assert torch.equal(taps[0], x) and torch.equal(taps[1], half)


@torch.no_grad()
def test_one_row_at_a_time_equals_all_rows() -> None:
    decoder = random_decoder(shape("tiny"), seed=3)
    ids, attend = torch.arange(12), Causal()
    rows = [decoder.run(decoder.embed(ids[i : i + 1]), torch.tensor([i]), attend)[0] for i in range(12)]
    assert torch.allclose(decoder.logits(decoder.finish(torch.cat(rows))), forward(decoder, ids), atol=1e-5)


def test_a_pass_never_asks_the_host() -> None:
    """Tensors without data: whatever would copy a value to the host, and so break a CUDA graph, raises here."""
    decoder = Decoder.empty(shape("llama-8b"), torch.bfloat16, "meta")
    ids = torch.empty(5, dtype=torch.int64, device="meta")
    x, taps = decoder.run(decoder.embed(ids), ids, lambda layer, q, k, v: q.flatten(1), taps=(0, 16, 32))
    assert decoder.logits(decoder.finish(x)).shape == (5, 128256) and len(taps) == 3


def test_shallow_shares_parameters_and_equals_the_first_layers() -> None:
    decoder = random_decoder(shape("tiny"))
    drafter = shallow(decoder, 1)
    ids, positions = torch.arange(7), torch.arange(7)
    x, _ = decoder.run(decoder.embed(ids), positions, Causal(), range(1))
    assert torch.equal(drafter.run(drafter.embed(ids), positions, Causal())[0], x)
    assert {p.data_ptr() for p in drafter.parameters()} < {p.data_ptr() for p in decoder.parameters()}
    assert drafter.config.num_layers == 1
    with pytest.raises(UsageError, match="1 to 2 layers"):
        shallow(decoder, 3)


def test_gradients_reach_every_parameter() -> None:
    decoder = random_decoder(shape("tiny")).requires_grad_(True)
    forward(decoder, torch.arange(8)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in decoder.parameters())


def test_chosen_vocabulary_rows() -> None:
    decoder = random_decoder(shape("tiny"))
    features, rows = torch.randn(3, 32), torch.tensor([5, 60, 1])
    assert torch.allclose(decoder.logits(features, rows), decoder.logits(features)[:, rows], atol=1e-6)


def test_random_decoders_follow_their_seed() -> None:
    first, same, other = (random_decoder(shape("tiny"), seed=s) for s in (1, 1, 2))
    assert torch.equal(first.embedding, same.embedding) and not torch.equal(first.embedding, other.embedding)


@torch.no_grad()
def test_packing_changes_only_rounding() -> None:
    assert not pack(random_decoder(shape("tiny")), torch.float32), "fp32 stays as it is"
    exact = random_decoder(replace(shape("smollm2"), num_layers=2), torch.bfloat16)
    packed = random_decoder(replace(shape("smollm2"), num_layers=2), torch.bfloat16)
    if not pack(packed, torch.bfloat16):
        pytest.skip("this CPU has no bf16 instructions")
    ids = torch.arange(10)
    assert torch.allclose(forward(packed, ids).float(), forward(exact, ids).float(), atol=0.02)
    assert torch.equal(
        packed.logits(torch.ones(1, 576).bfloat16(), ids), exact.logits(torch.ones(1, 576).bfloat16(), ids)
    )
