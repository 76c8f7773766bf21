"""Walltime factors of cascades: the specification's numbers, limits, a simulation, and the scan."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.kit.ewif import Plan, Rates, chain, choose, cost, factor, horizontal, phi, tokens

# K.5: .7 by the target, .4 by the reviewer.
RATES = Rates(good=0.7, cheap=0.5, reviewed=0.4, good_cost=0.05)


def test_specified_numbers() -> None:
    """K.5 of the structure specification."""
    vertical = Plan(reviews=3, per_review=5)
    assert tokens(RATES, vertical) == pytest.approx(2.8697, abs=5e-5)
    assert factor(RATES, vertical) == pytest.approx(2.4954, abs=5e-5)
    assert horizontal([(0.7, 0.05)] * 5) == pytest.approx(2.3529, abs=5e-5)
    assert horizontal([(0.7, 0.05)] * 3 + [(0.5, 0.0)] * 6) == pytest.approx(2.4962, abs=5e-5)
    assert horizontal([(0.7, 0.05)] * 9) == pytest.approx(2.2339, abs=5e-5)


def test_one_plan_covers_chains_and_horizontal_cascades() -> None:
    for n in (0, 1, 5, 9):
        assert factor(RATES, Plan(n)) == pytest.approx(chain(0.7, n, 0.05))
        assert chain(0.7, n, 0.05) == pytest.approx((1 - 0.7 ** (n + 1)) / (0.3 * (1 + 0.05 * n)))
    assert factor(RATES, Plan(3, then=6)) == pytest.approx(horizontal([(0.7, 0.05)] * 3 + [(0.5, 0.0)] * 6))


def test_phi_is_a_generating_function() -> None:
    """The distribution of a review's tokens is j + 1 with a'^j (1 - a'), and k + 1 with the rest."""
    distribution = [0.4**j * 0.6 for j in range(5)] + [0.4**5]
    for z in (0.0, 0.3, 0.7, 1.0):
        assert phi(z, 0.4, 5) == pytest.approx(sum(chance * z ** (j + 1) for j, chance in enumerate(distribution)))


def test_sure_acceptance_is_the_limit() -> None:
    plan = Plan(3, 5, 2)
    near, sure = (Rates(a, 0.5, 0.4, 0.05, 0.01) for a in (1 - 1e-7, 1.0))
    assert tokens(sure, plan) == pytest.approx(tokens(near, plan), abs=1e-5)
    assert cost(sure, plan) == pytest.approx(1 + 0.15 + 0.17)
    assert tokens(Rates(1.0, 1.0, 1.0, 0.05), plan) == pytest.approx(1 + 3 * 6 + 2)


@pytest.mark.parametrize("plan", [Plan(3, 5), Plan(2, 4, 3), Plan(4, 0, 6)], ids=str)
def test_a_simulation_agrees_to_three_digits(plan: Plan) -> None:
    rng, rounds = np.random.default_rng(7), 2_000_000
    reviewed = np.zeros(rounds, dtype=np.int64)
    for _ in range(plan.reviews):
        passed = rng.random((rounds, plan.per_review)) < RATES.reviewed
        reviewed += np.cumprod(passed, axis=1).sum(axis=1) + 1
    passing = rng.geometric(1 - RATES.good, rounds) - 1  # tokens that the target lets pass in a row
    after = np.minimum(rng.geometric(1 - RATES.cheap, rounds) - 1, plan.then)
    emitted = 1 + np.where(passing >= reviewed, reviewed + after, passing)
    assert emitted.mean() == pytest.approx(tokens(RATES, plan), abs=5e-3)


def test_the_scan_finds_the_best_plan() -> None:
    best = choose(RATES, 6, 6, 6)
    tried = [Plan(n, k if n else 0, m) for n, k, m in product(range(7), repeat=3)]
    assert factor(RATES, best) == max(factor(RATES, plan) for plan in tried)
    assert best.reviews > 0 and best.per_review > 0 and best.then > 0  # the inner drafter is free


def test_what_does_not_pay_is_not_planned() -> None:
    assert choose(Rates(0.3, 0.0, 0.2, good_cost=0.9, cheap_cost=0.5)) == Plan(0)
    assert choose(Rates(0.8, 0.3, 0.0, good_cost=0.02, cheap_cost=0.5)).per_review == 0
