"""Layers in groups: the plan, what a fuzzy pass is, and that exact ones are the decoder's own."""

from __future__ import annotations

import pytest
import torch

from foredraft.models import ModelConfig, random_decoder
from foredraft.models.grouped import GroupedDecoder, layer_plan
from foredraft.runtime import FINAL, Rows, TorchExecutor

CONFIG = ModelConfig("llama", 64, 32, 6, 4, 2, 8, 64, max_position=64, tied_head=True)


@pytest.mark.parametrize(
    ("layers", "size", "plan"),
    [(10, 4, [1, 4, 4, 1]), (7, 4, [1, 4, 1, 1]), (2, 4, [1, 1]), (6, 1, [1] * 6), (1, 4, [1])],
)
def test_the_plan(layers: int, size: int, plan: list[int]) -> None:
    spans = layer_plan(layers, size)
    assert [len(span) for span in spans] == plan
    assert [i for span in spans for i in span] == list(range(layers))


def decoder():  # type: ignore[no-untyped-def]
    made = random_decoder(CONFIG, seed=3)
    for parameter in made.parameters():
        parameter.data *= 4 if parameter.dim() > 1 else 1
    for layer in made.layers:
        layer.attn_norm.data.uniform_(0.5, 1.5)
    return made


@torch.no_grad()
def by_hand(model, executor: TorchExecutor, rows: Rows, plan: list[range]) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """The definition, layer by layer."""
    placement = executor.place(rows)
    x = model.embed(rows.token)
    cos, sin = model.rotation(placement.position)
    for span in plan:
        h, answers = x, []
        for i in span:
            layer = model.layers[i]
            read, _ = layer.enter(h)
            answers.append(layer.out(layer.mixed(layer.qkv(read), cos, sin, placement.attend, i)))
        for i, answer in zip(span, answers, strict=True):
            x = model.layers[i].mlp(x + answer)
    return model.finish(x)


@pytest.mark.parametrize("padded", [False, True])
def test_a_fuzzy_pass_is_its_definition(padded: bool) -> None:
    model = decoder()
    grouped = GroupedDecoder(model, 3)
    own, other = TorchExecutor(grouped, padded=padded), TorchExecutor(model)
    rows = Rows.chains([0], [[5, 6, 7]], own.device)
    for executor in (own, other):
        executor.prefill([0], [[1, 2, 3, 4]])
    with grouped.fuzzily():
        found = own.forward(rows).hidden[FINAL]
    expected = by_hand(model, other, rows, grouped.plan)
    assert torch.allclose(found, expected, atol=1e-4)
    exact = TorchExecutor(model)
    exact.prefill([0], [[1, 2, 3, 4]])
    assert not torch.allclose(found, exact.forward(rows).hidden[FINAL], atol=1e-2)


def test_exact_passes_are_the_decoders_own() -> None:
    model = decoder()
    grouped = GroupedDecoder(model, 3)
    rows = Rows.chains([0], [[1, 2, 3, 4, 5]], model.device)
    assert torch.equal(TorchExecutor(grouped).forward(rows).logits, TorchExecutor(model).forward(rows).logits)
