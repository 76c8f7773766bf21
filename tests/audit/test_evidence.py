"""The evidence is a test martingale: its mean is one under the null, and what it promises about errors holds."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy.stats import kstest

from foredraft.audit.enumerate.table_model import dirichlet, fixed
from foredraft.audit.mutation import JointSubject
from foredraft.audit.report import conclude, markdown
from foredraft.audit.sequential.cells import CellDistribution, cells_of, cells_of_dense
from foredraft.audit.sequential.martingale import BINS, KAPPAS, Evidence, chance_shift, log_bayes
from foredraft.audit.sequential.paired_martingale import PairedBets, detectable_pairs, pair_power
from foredraft.audit.sequential.power import POWER, detectable, hardest_shift, power, texts_needed
from foredraft.audit.sequential.test import Plan, Verdict, run_sequential_test

DISTRIBUTION = np.array([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_bayes_factor_has_mean_one_under_the_null(kappa: float, length: int) -> None:
    total = 0.0
    for text in product(range(DISTRIBUTION.size), repeat=length):
        counts = np.bincount(text, minlength=DISTRIBUTION.size).astype(float)
        total += float(DISTRIBUTION[list(text)].prod()) * float(np.exp(log_bayes(counts, DISTRIBUTION, kappa)))
    assert total == pytest.approx(1.0, abs=1e-9)


def test_the_evidence_of_all_views_has_mean_one_under_the_null() -> None:
    """By simulation, since the transform draws of its own."""
    distribution, rng = cells_of_dense(DISTRIBUTION, 4), np.random.default_rng(0)
    seen = []
    for _ in range(1500):
        evidence = Evidence(1, 1e-3, rng)
        evidence.add(0, "x", distribution, {1, 3}, Counter(rng.choice(4, 6, p=DISTRIBUTION).tolist()))
        seen.append(np.exp(evidence.log_e(0)))
    assert np.mean(seen) == pytest.approx(1.0, abs=5 * np.std(seen) / np.sqrt(len(seen)))


def test_the_first_token_after_a_prefix_is_no_evidence() -> None:
    for token in range(4):
        evidence = Evidence(1, 1e-3, np.random.default_rng(0))
        evidence.add(0, "x", cells_of_dense(DISTRIBUTION, 4), set(), {token: 1})
        assert evidence.views[0]["tokens"].log_e() == 0.0


def test_the_transform_is_uniform_whatever_the_distributions_are() -> None:
    evidence, rng = Evidence(1, 1e-3, np.random.default_rng(1)), np.random.default_rng(2)
    for key in range(3000):
        probs = rng.dirichlet(np.full(6, 0.4))
        token = int(rng.choice(6, p=probs))
        evidence.add(0, key, cells_of_dense(probs, 3), {0, 2}, {token: 1})
    for view in ("ranks", "copies"):
        counts = evidence.views[0][view].counts[view]
        assert counts.sum() == 3000
        places = np.repeat((np.arange(BINS) + 0.5) / BINS, counts.astype(int))
        assert kstest(places, "uniform").statistic < 0.5 / BINS + 0.03


def test_an_impossible_token_is_forgiven_once() -> None:
    distribution = cells_of_dense(np.array([0.6, 0.4, 0.0]), 3)
    for times, sure in ((1, False), (2, True)):
        evidence = Evidence(1, 1e-3, np.random.default_rng(0))
        evidence.add(0, "x", distribution, set(), {0: 6, 1: 4, 2: times})
        assert (evidence.log_e(0) >= evidence.threshold) == sure


@pytest.mark.parametrize("audits", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_false_alarms_stay_below_their_rate(alpha: float, audits: int) -> None:
    """Audits of a right sampler, each looked at after every batch."""
    target = dirichlet(4, seed=5)
    joint, alarms = target.joint(2), 0
    for seed in range(audits):
        plan = Plan(((),), 2, alpha, resolution=0.1, texts=600, batch=32, seed=seed)
        alarms += run_sequential_test(JointSubject("right", joint, target), plan).verdict is Verdict.FAIL
    assert alarms <= audits * alpha


def test_stated_power_is_reached_by_the_whole_procedure() -> None:
    target = fixed(DISTRIBUTION.tolist())
    threshold, distribution = float(np.log(1 / 1e-3)), cells_of_dense(DISTRIBUTION, 4)
    count = texts_needed([distribution], 0.08, threshold)
    assert count is not None
    assert detectable([distribution], count, threshold) == pytest.approx(0.08, rel=0.1)
    wrong = hardest_shift(distribution.mass, 0.08)
    assert wrong is not None and np.abs(wrong - distribution.mass).sum() / 2 == pytest.approx(0.08)
    plans = [Plan(((),), 1, resolution=0.08, batch=64, seed=seed) for seed in range(60)]
    failed = [
        run_sequential_test(JointSubject("wrong", wrong[:4], target), plan).verdict is Verdict.FAIL for plan in plans
    ]
    assert np.mean(failed) >= POWER - 0.08


def test_more_texts_see_smaller_biases() -> None:
    distributions, threshold = [cells_of_dense(dirichlet(12, seed).next_distribution(), 8) for seed in range(3)], 8.0
    sizes = [detectable(distributions, count, threshold) for count in (100, 1000, 10_000)]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    assert power(distributions, 1000, 0.3, threshold) == 1.0


def test_prompts_without_choice_decide_nothing() -> None:
    sure = CellDistribution((7,), np.array([1 - 1e-12, 1e-12]))
    assert texts_needed([sure], 0.1, 7.0) is None or hardest_shift(sure.mass, 0.1) is not None
    result = run_sequential_test(JointSubject("sure", np.array([1.0]), fixed((1.0,))), Plan(((),), 1, texts=64))
    assert result.verdict in (Verdict.PASS, Verdict.UNDECIDED)


def test_large_shifts_are_no_harder_to_see_than_small_ones() -> None:
    """Half of the probability can be moved where two halves are alike, and not more."""
    even, threshold = cells_of_dense(np.full(4, 0.25), 4), float(np.log(1000))
    assert [power([even], 200, size, threshold) for size in (0.4, 0.5, 0.6, 0.9)] == [1.0] * 4
    assert texts_needed([even], 0.6, threshold) is not None
    assert detectable_pairs([even.mass], 400, threshold) < 0.4


def test_what_lies_in_one_cell_is_said_to_be_unseen() -> None:
    """Half of the unlikely tokens never come: a total variation of a half that no cell shows."""
    even = np.full(40, 1 / 40)
    halved = np.where(np.arange(40) < 16, even, np.where(np.arange(40) < 28, 2 * even, 0.0))
    subject = JointSubject("halved", halved, fixed(even))
    subject.distributions = lambda prompt, prefixes: [cells_of_dense(even, 16) for _ in prefixes]  # type: ignore[method-assign]
    plan = Plan(((),), 1, resolution=0.2, texts=2000)
    found = run_sequential_test(subject, plan).as_dict(plan)
    assert found["verdict"] == "PASS" and found["unseen_probability"] == pytest.approx(24 / 40)
    document = conclude({"name": "halved"}, {"statistics": found}, seed=0)
    assert "A shift among the rest, which has 60% of the probability, stays unseen" in markdown(document)


def test_chance_level_is_what_chance_shows() -> None:
    rng = np.random.default_rng(3)
    seen = np.abs(rng.multinomial(400, DISTRIBUTION, size=4000) / 400 - DISTRIBUTION).sum(axis=1) / 2
    assert chance_shift(DISTRIBUTION, 400) == pytest.approx(seen.mean(), rel=0.02)


def test_partial_distributions_keep_the_rest_in_one_cell() -> None:
    distribution = cells_of({"a": 0.5, "b": 0.2})
    assert distribution.tokens == ("a", "b") and distribution.mass.tolist() == pytest.approx([0.5, 0.2, 0.3])
    assert distribution.cell("b") == 1 and distribution.cell("z") == distribution.cell("y") == 2


def test_pairs_of_equal_samplers_are_a_fair_coin() -> None:
    """The wealth has mean one: all sequences of three pairs over two tokens, enumerated."""
    distribution, total = np.array([0.7, 0.3]), np.zeros(3)
    for text in product(range(2), repeat=6):
        bet = PairedBets()
        for i in range(3):
            bet.add(text[2 * i], text[2 * i + 1])
        total += distribution[list(text)].prod() * np.exp(bet.wealth)
    assert total == pytest.approx(np.ones(3), abs=1e-12)


def test_pairs_of_different_samplers_are_told_apart() -> None:
    rng, bet = np.random.default_rng(0), PairedBets()
    for _ in range(800):
        bet.add(int(rng.random() < 0.6), int(rng.random() < 0.4))
    assert bet.log_e() > np.log(1000)
    seen, chance = bet.shift()
    assert seen == pytest.approx(0.2, abs=0.05) and chance < 0.05
    assert pair_power([np.array([0.5, 0.5])], 800, 0.2, float(np.log(1000))) > 0.9
    assert pair_power([np.array([0.5, 0.5])], 50, 0.05, float(np.log(1000))) < 0.1
