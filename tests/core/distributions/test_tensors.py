"""Distributions: looking up, writing out and drawing agree, and no draw ever shows a token of probability zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.tensors import (
    DenseDistribution,
    LazyDistributions,
    MappedDistribution,
    PointMass,
    TableDistributions,
    inverse_cdf,
    normalise,
    race,
)
from foredraft.types import Distribution
from tests.kit.chance import chance_of

ALMOST_ONE = 1 - 2.0**-53
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def random_distributions(rows: int, vocab: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Peaked distributions of which half the tokens are impossible, the first and the last among them in some rows."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(vocab, 0.2), rows) * (rng.random((rows, vocab)) < 0.5)
    probs[:, vocab // 2] += 1e-3
    probs /= probs.sum(axis=1, keepdims=True)
    return torch.from_numpy(probs).to(dtype)


def grid(count: int) -> Tensor:
    return torch.cat([torch.linspace(0, ALMOST_ONE, count, dtype=torch.float64), torch.tensor([0.0, ALMOST_ONE])])


@DTYPES
@pytest.mark.parametrize("vocab", [2, 7, 50, 2000])
def test_no_draw_is_impossible(vocab: int, dtype: torch.dtype) -> None:
    uniform = grid(300)
    for row in random_distributions(5, vocab, vocab, dtype):
        drawn = inverse_cdf(row.expand(len(uniform), -1), uniform)
        assert (row[drawn] > 0).all()


@DTYPES
def test_draws_at_the_ends_take_the_first_and_last_possible_token(dtype: torch.dtype) -> None:
    distribution = torch.tensor([[0, 0.25, 0, 0.75, 0, 0]], dtype=dtype)
    assert int(inverse_cdf(distribution, torch.tensor([0.0]))) == 1
    assert int(inverse_cdf(distribution, torch.tensor([ALMOST_ONE], dtype=torch.float64))) == 3
    assert int(inverse_cdf(distribution, torch.tensor([1.0]))) == 3  # a float32 uniform may round up to one


def keys(count: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count))


@DTYPES
@pytest.mark.parametrize("vocab", [2, 50, 256, 257, 1000])
def test_no_race_is_won_by_an_impossible_token(vocab: int, dtype: torch.dtype) -> None:
    for row in random_distributions(3, vocab, vocab, dtype):
        winner = race(row.expand(2000, -1), keys(2000, vocab))
        assert (row[winner] > 0).all()


@DTYPES
@pytest.mark.parametrize("vocab", [3, 60, 256, 700])
def test_races_follow_the_distribution(vocab: int, dtype: torch.dtype) -> None:
    """On one block of tokens and on several."""
    distribution = random_distributions(1, vocab, vocab + 1, dtype)
    assert (
        chance_of(race(distribution.expand(20_000, -1), keys(20_000, vocab)), distribution[0].double().numpy()) > 1e-3
    )


@pytest.mark.parametrize("vocab", [100, 700])
def test_races_hardly_notice_rounding(vocab: int) -> None:
    """What the race is for: a distribution off by a rounding error keeps its winner, in float32 as in float64."""
    distribution = random_distributions(1, vocab, 5).expand(5000, -1)
    noise = 1 + 1e-6 * torch.randn(distribution.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    winner = race(distribution, keys(5000, 6))
    assert int((race(distribution * noise, keys(5000, 6)) != winner).sum()) <= 2
    assert int((race(distribution.float(), keys(5000, 6)) != winner).sum()) <= 2


def test_draws_follow_the_distribution_at_its_borders() -> None:
    distribution = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64)
    borders = {0.0: 0, 0.2499: 0, 0.25: 1, 0.7499: 1, 0.75: 2, 0.9999: 2}
    for uniform, token in borders.items():
        assert int(inverse_cdf(distribution, torch.tensor([uniform], dtype=torch.float64))) == token


def test_rare_tokens_of_large_float32_distributions_keep_their_share() -> None:
    vocab = 100_000
    probs = torch.full((1, vocab), 1e-9)
    probs[0, 0] = 1 - 1e-9 * (vocab - 1)
    uniform = torch.tensor([1 - 1e-9 * (k + 0.5) for k in range(0, 1000, 7)], dtype=torch.float64)
    drawn = inverse_cdf(probs.expand(len(uniform), -1), uniform)
    expected = torch.tensor([vocab - 1 - k for k in range(0, 1000, 7)])
    assert (drawn - expected).abs().max() <= 60  # float32 rounds the large share by up to 6e-8


def test_unnormalised_weights_are_drawn_by_share() -> None:
    uniform = grid(100)
    weights = torch.tensor([[1.0, 0.0, 3.0, 4.0]], dtype=torch.float64)
    plain, scaled = (inverse_cdf(w.expand(len(uniform), -1), uniform) for w in (weights / 8, weights))
    assert torch.equal(plain, scaled)


@DTYPES
def test_point_distribution_is_its_dense_distribution(dtype: torch.dtype) -> None:
    point = PointMass(torch.tensor([2, 0, 4]), 5, dtype)
    dense = DenseDistribution(point.dense())
    assert dense.probs.dtype == dtype
    check_same(point, dense, 5)


@DTYPES
def test_mapped_distribution_is_the_dense_distribution_in_target_ids(dtype: torch.dtype) -> None:
    ids = torch.tensor([7, 1, 4, 9])
    index = torch.full((12,), -1)
    index[ids] = torch.arange(4)
    inner = DenseDistribution(random_distributions(3, 4, 1, dtype))
    mapped = MappedDistribution(inner, ids, index)
    expected = torch.zeros((3, 12), dtype=dtype)
    for local, token in enumerate(ids.tolist()):
        expected[:, token] = inner.probs[:, local]
    assert torch.equal(mapped.dense(), expected)
    for token in range(12):
        assert torch.equal(mapped.prob(torch.full((3,), token)), expected[:, token])


def test_mapped_draws_follow_the_mapped_distribution() -> None:
    ids = torch.tensor([7, 1, 4])
    index = torch.full((9,), -1)
    index[ids] = torch.arange(3)
    inner = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    uniform = torch.linspace(0, ALMOST_ONE, 10_000, dtype=torch.float64)
    distribution = MappedDistribution(DenseDistribution(inner.expand(len(uniform), -1)), ids, index)
    for drawn, slack in ((distribution.draw(uniform), 1e-3), (distribution.race(keys(len(uniform), 2)), 0.02)):
        shares = torch.bincount(drawn, minlength=9) / len(uniform)
        assert torch.allclose(shares[ids].double(), inner[0], atol=slack)
        assert float(shares.sum()) == pytest.approx(float(shares[ids].sum()))


def check_same(first: Distribution, second: Distribution, vocab: int) -> None:
    dense = first.dense()
    assert torch.equal(dense, second.dense())
    for token in range(vocab):
        which = torch.full((dense.shape[0],), token)
        assert torch.equal(first.prob(which), second.prob(which))
    for uniform in grid(20):
        every = uniform.expand(dense.shape[0])
        assert torch.equal(first.draw(every), second.draw(every))
    key = keys(dense.shape[0], 9)
    assert torch.equal(first.race(key), second.race(key))


def test_dense_hands_out_a_copy() -> None:
    probs = torch.tensor([[0.5, 0.5]])
    DenseDistribution(probs).dense().zero_()
    assert probs.tolist() == [[0.5, 0.5]]


def test_tables_and_lazy_distributions_find_the_row() -> None:
    probs = random_distributions(12, 5, 3).reshape(3, 4, 5)
    lazy = LazyDistributions(lambda row: DenseDistribution(probs[torch.arange(3), row]))
    row = torch.tensor([2, 0, 3])
    assert torch.equal(TableDistributions(probs).at(row).dense(), lazy.at(row).dense())
    assert torch.equal(TableDistributions(probs).at(row).dense()[2], probs[2, 3])


@DTYPES
def test_normalise_falls_back_where_nothing_is_left(dtype: torch.dtype) -> None:
    weights = torch.tensor([[1.0, 3.0], [0.0, 0.0]], dtype=dtype)
    fallback = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=dtype)
    assert torch.allclose(normalise(weights, fallback), torch.tensor([[0.25, 0.75], [0.4, 0.6]], dtype=dtype))
