"""Tokens that the library draws are those of the reference: `distribution_of` and its race, by the same keys."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from foredraft.core.distributions.sampling import ParamBlock, distribution_of
from foredraft.core.rng.hashing import key_of, state_of
from foredraft.models import native
from foredraft.types import SamplingParams
from tests.kit.native_levels import NAMES, library

pytestmark = pytest.mark.skipif(native.compiled() is None, reason="needs a C++ compiler")
OPTIONS = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 1e-6},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 40},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 2.0, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 0.01},
]


def options(params: SamplingParams, vocab: int) -> native.Options:
    top_k = params.top_k if 0 < params.top_k < vocab else 0
    return native.Options(params.temperature, params.top_p, params.min_p, top_k)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("vocab", [7, 100, 256, 257, 1000, 5000])
def test_the_tokens_of_the_reference(name: str, vocab: int) -> None:
    code, chance = library(name), torch.Generator().manual_seed(vocab)
    for given in OPTIONS:
        params = SamplingParams(**given)  # type: ignore[arg-type]
        block = ParamBlock.of([params], vocab)
        for _ in range(25):
            logits = torch.randn(1, vocab, generator=chance) * 3
            logits[0, torch.randint(vocab, (vocab // 4,), generator=chance)] = -torch.inf
            key = torch.randint(-(2**63), 2**63 - 1, (1,), generator=chance)
            distribution = distribution_of(logits, block)
            expected = int(logits.argmax() if params.temperature == 0 else distribution.race(key))
            found = code.draw(logits[0], options(params, vocab), int(key) % 2**64)
            assert found == expected, (given, float(distribution.prob(torch.tensor([found]))))


def test_equal_tokens_at_the_border_stay_in() -> None:
    code = native.compiled()
    assert code is not None
    logits = torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0])
    for how in (native.Options(1.0, 1.0, 0.0, 2), native.Options(1.0, 0.6, 0.0, 0)):
        assert {code.draw(logits, how, key) for key in range(400)} == {0, 1, 2, 3}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_no_distribution(value: float) -> None:
    code = native.compiled()
    assert code is not None
    logits = torch.zeros(100)
    logits[70] = value
    for temperature in (0.0, 1.0):
        how = native.Options(temperature, 0.9, 0.0, 10)
        assert code.draw(logits, how, 1) == code.draw(torch.full((100,), -torch.inf), how, 1) == -1


def test_frequencies_are_probabilities() -> None:
    code = native.compiled()
    assert code is not None
    logits = torch.randn(600, generator=torch.Generator().manual_seed(3)) * 1.5
    logits[100:500] -= 6.0  # a block of its own, and rare
    how, count = native.Options(0.9, 1.0, 0.0, 0), 40_000
    drawn = torch.tensor([code.draw(logits, how, key_of(5, place, 0, 0, 0)) for place in range(count)])
    found, expected = torch.bincount(drawn, minlength=600).double(), torch.softmax(logits.double() / 0.9, 0) * count
    often = expected > 20
    seen, wanted = (torch.cat((x[often], x[~often].sum()[None])) for x in (found, expected))
    assert chisquare(seen.numpy(), wanted.numpy()).pvalue > 1e-4


def test_keys_of_integers_are_those_of_tensors() -> None:
    for seed, place in ((0, 1), (-5, 700), (2**62, 3)):
        key = state_of(torch.tensor([seed]), torch.tensor([place]), torch.tensor([0]), 0, 0)
        assert key_of(seed, place, 0, 0, 0) == int(key) % 2**64
