"""Rng are pure, uniform and independent, and never show a side of probability zero."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from foredraft.core.distributions.tensors import DenseDistribution
from foredraft.core.rng.batched import batched_rng
from foredraft.core.rng.enumerating import distribution_of_outcomes, outcomes
from foredraft.core.rng.hashing import exponentials, hashed_uniform, uniform_of
from foredraft.core.rng.keyed import KeyedRng, Purpose, Rng
from tests.kit.chance import chance_of

COUNT = 200_000
DISTRIBUTION = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)


def whole(low: int, high: int, size: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, size))


def test_tensor_and_integer_hashes_agree() -> None:
    seed, counter = whole(-(2**63), 2**63 - 1, 500, 0), whole(0, 2**40, 500, 1)
    node = whole(-1, 2**20, 500, 2)
    for purpose, turn in itertools.product(Purpose, (0, 3)):
        fast = hashed_uniform(seed, counter, node, int(purpose), turn).tolist()
        keys = zip(seed.tolist(), counter.tolist(), node.tolist(), strict=True)
        assert fast == [uniform_of(*key, int(purpose), turn) for key in keys]
        assert all(0 <= u < 1 for u in fast)


def streams() -> dict[str, Tensor]:
    """Uniforms along each coordinate of the key, the others held."""
    along, zero = torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64)
    turns = [hashed_uniform(along[:1000], zero[:1000], zero[:1000], 1, turn) for turn in range(200)]
    return {
        "seed": hashed_uniform(along, zero, zero, 1, 0),
        "counter": hashed_uniform(zero + 5, along, zero, 1, 0),
        "node": hashed_uniform(zero + 5, zero, along - 1, 1, 0),
        "turn": torch.stack(turns, dim=1).flatten(),
    }


def test_uniform_in_every_direction() -> None:
    for name, uniform in streams().items():
        buckets = torch.bincount((uniform * 64).long(), minlength=64).numpy()
        assert chisquare(buckets).pvalue > 1e-3, name
        pairs = (uniform[:-1] * 16).long() * 16 + (uniform[1:] * 16).long()
        assert chisquare(torch.bincount(pairs, minlength=256).numpy()).pvalue > 1e-3, name


def test_neighbouring_keys_are_uncorrelated() -> None:
    along, zero = torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64)
    here = hashed_uniform(along, zero, zero, 1, 0)
    others = {
        "seed": hashed_uniform(along + 1, zero, zero, 1, 0),
        "counter": hashed_uniform(along, zero + 1, zero, 1, 0),
        "node": hashed_uniform(along, zero, zero + 1, 1, 0),
        "turn": hashed_uniform(along, zero, zero, 1, 1),
        **{f"purpose {purpose.name}": hashed_uniform(along, zero, zero, int(purpose), 0) for purpose in Purpose},
    }
    del others["purpose ACCEPT"]  # that is `here` itself
    for name, there in others.items():
        r = float(torch.corrcoef(torch.stack([here, there]))[0, 1])
        assert abs(r) < 4.5 / COUNT**0.5, name
        joint = torch.bincount((here * 8).long() * 8 + (there * 8).long(), minlength=64).numpy()
        assert chisquare(joint).pvalue > 1e-4, name


def test_exponentials_have_their_distribution_and_do_not_depend_on_their_number() -> None:
    key = whole(-(2**63), 2**63 - 1, 5000, 3)
    drawn = exponentials(key, 40)
    assert torch.equal(drawn[:, :7], exponentials(key, 7))
    assert bool((drawn > 0).all()) and bool(torch.isfinite(drawn).all())
    share = 1 - torch.exp(-drawn.double())  # uniform, if the variates are exponential
    assert chisquare(torch.bincount((share * 64).long().flatten(), minlength=64).numpy()).pvalue > 1e-3
    pairs = (share[:, :-1] * 16).long() * 16 + (share[:, 1:] * 16).long()
    assert chisquare(torch.bincount(pairs.flatten(), minlength=256).numpy()).pvalue > 1e-3


def test_random_numbers_depend_on_their_key_alone() -> None:
    rng = KeyedRng(torch.tensor([3, 4, 5]), torch.tensor([0, 1, 2]), torch.tensor([7, 8, 9]))
    node = torch.tensor([0, 1, -1])
    distribution = DenseDistribution(DISTRIBUTION.expand(3, -1))
    for index in ([2], [1, 0], [0, 1, 2]):
        part, which = rng.choose(torch.tensor(index)), torch.tensor(index)
        some = DenseDistribution(DISTRIBUTION.expand(len(index), -1))
        assert torch.equal(part.draw(some, Purpose.OWN, node[which]), rng.draw(distribution, Purpose.OWN, node)[which])
        half = torch.full((3,), 0.5)
        flips = rng.flip(half, Purpose.ACCEPT, node, 2)
        assert torch.equal(part.flip(half[which], Purpose.ACCEPT, node[which], 2), flips[which])


@pytest.mark.parametrize("batch", [1, 5, 40])
def test_rolling_ahead_gives_the_same_numbers(batch: int) -> None:
    rng = KeyedRng(whole(-(2**63), 2**63 - 1, batch, 4), whole(0, 1000, batch, 5), whole(0, 1000, batch, 6))
    batched = batched_rng(rng, nodes=9)
    distribution = DenseDistribution(torch.from_numpy(np.random.default_rng(7).dirichlet(np.ones(50), batch)))
    prob = torch.from_numpy(np.random.default_rng(8).random(batch))
    for purpose, turn, seed in itertools.product(Purpose, (0, 2), range(3)):
        node = whole(-1, 9, batch, seed)
        assert torch.equal(batched.flip(prob, purpose, node, turn), rng.flip(prob, purpose, node, turn))
        assert torch.equal(batched.draw(distribution, purpose, node, turn), rng.draw(distribution, purpose, node, turn))
        assert torch.equal(batched.draw_at(distribution, node + 2), rng.draw_at(distribution, node + 2))
    part = torch.arange(0, batch, 2)
    assert torch.equal(
        batched.choose(part).draw(DenseDistribution(distribution.probs[part]), Purpose.OWN, part * 0),
        rng.draw(distribution, Purpose.OWN, torch.zeros(batch, dtype=torch.int64))[part],
    )


def test_a_position_gets_the_same_number_in_whatever_round() -> None:
    distribution = DenseDistribution(torch.rand((1, 1000), generator=torch.Generator().manual_seed(0)))
    seed = torch.tensor([12])
    for depth in range(1, 6):
        early = KeyedRng(seed, torch.tensor([0]), torch.tensor([100]))
        late = KeyedRng(seed, torch.tensor([9]), torch.tensor([100 + depth - 1]))
        assert torch.equal(
            early.draw_at(distribution, torch.tensor([depth])), late.draw_at(distribution, torch.tensor([1]))
        )


def test_flips_are_strict() -> None:
    rng = KeyedRng(torch.arange(1000), torch.zeros(1000, dtype=torch.int64), torch.zeros(1000, dtype=torch.int64))
    node = torch.zeros(1000, dtype=torch.int64)
    assert not rng.flip(torch.zeros(1000), Purpose.ACCEPT, node).any()
    assert rng.flip(torch.ones(1000), Purpose.ACCEPT, node).all()


def test_keyed_draws_follow_the_distribution() -> None:
    every = torch.arange(COUNT)
    rng = KeyedRng(every, every % 3, every % 5)
    distribution = DenseDistribution(DISTRIBUTION.expand(COUNT, -1))
    for drawn in (rng.draw(distribution, Purpose.OWN, every % 7 - 1), rng.draw_at(distribution, every % 4)):
        assert chance_of(drawn, DISTRIBUTION.numpy()) > 1e-3


def test_the_enumerating_rng_visits_every_outcome() -> None:
    distribution = DenseDistribution(DISTRIBUTION[None])
    node = torch.tensor([0])

    def run(rng: Rng) -> tuple[int, bool]:
        token = int(rng.draw(distribution, Purpose.OWN, node)[0])
        return token, bool(rng.flip(torch.tensor([0.25]), Purpose.ACCEPT, node)[0])

    found = distribution_of_outcomes(run)
    assert found == {
        (t, f): pytest.approx(float(DISTRIBUTION[t]) * w) for t in (0, 2, 3) for f, w in ((True, 0.25), (False, 0.75))
    }
    assert sum(weight for weight, _ in outcomes(run)) == pytest.approx(1)


def test_the_enumerating_rng_does_not_branch_on_sure_outcomes() -> None:
    node = torch.tensor([0])
    sure = list(outcomes(lambda rng: bool(rng.flip(torch.tensor([1.0]), Purpose.ACCEPT, node)[0])))
    assert sure == [(1.0, True)]
