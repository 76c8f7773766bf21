"""Calibration keeps its promise on processes whose truth is known, and says when it cannot make one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from foredraft.errors import UsageError
from foredraft.judge.eval.calibrate import Budget, calibrate
from foredraft.judge.eval.calibration_run import SolvedLog
from foredraft.judge.eval.paired_eval import Answer, Arm
from foredraft.judge.fit.false_accepts import lower_bound, upper_bound
from foredraft.judge.problems.families import draw


def test_the_bound_is_clopper_and_pearsons() -> None:
    """At the bound, so few hits have exactly the chance that is left to error."""
    for hits, count, confidence in ((0, 299, 0.95), (4, 1000, 0.95), (30, 50, 0.9), (1, 2, 0.5)):
        bound = upper_bound(hits, count, confidence)
        assert binom.cdf(hits, count, bound) == pytest.approx(1 - confidence)
        assert 1 - binom.cdf(hits - 1, count, lower_bound(hits, count, confidence)) == pytest.approx(
            1 - confidence if hits else 1.0
        )
    assert upper_bound(5, 5) == 1.0 and lower_bound(0, 5) == 0.0


def test_a_budget_knows_how_many_prompts_it_needs() -> None:
    budget = Budget()
    assert budget.needed == 299
    assert budget.allowed(298) == -1 and budget.allowed(299) == 0 and budget.allowed(1000) == 4
    with pytest.raises(UsageError, match=r"298 prompts cannot support a loss of 0.01 .* 299 are needed"):
        budget.check(298)
    for loss, confidence in ((0.0, 0.9), (0.1, 1.0)):
        with pytest.raises(UsageError, match="between 0 and 1"):
            Budget(loss, confidence)


def simulated(rates: dict[float, float], count: int, seed: int) -> dict[float, list[bool]]:
    """Spoilt prompts at each threshold: the looser, the more, and never fewer than at a stricter one."""
    luck = np.random.default_rng(seed).random(count)
    return {threshold: (luck < rate).tolist() for threshold, rate in rates.items()}


@pytest.mark.parametrize("rates", [(0.0, 0.002, 0.0101, 0.03), (0.0101, 0.02), (0.004, 0.009, 0.0105, 0.012, 0.02)])
def test_the_procedure_errs_no_more_often_than_it_says(rates: tuple[float, ...]) -> None:
    """500 calibrations with known spoil rates: a threshold that breaks the budget is chosen in at most 5% of them."""
    truth = {1 - 0.1 * i: rate for i, rate in enumerate(rates)}
    wrong = 0
    for seed in range(500):
        spoilt = simulated(truth, 1000, seed)
        found = calibrate(list(truth), 1000, Budget(), spoilt.__getitem__).threshold
        wrong += found is not None and truth[found] > 0.01
    assert wrong / 500 <= 0.05


def test_a_good_judge_is_let_through() -> None:
    """A rate of a tenth of the budget passes nearly always, so that the test above is no empty one."""
    truth = {0.9: 0.0, 0.5: 0.001}
    found = [
        calibrate(list(truth), 1000, Budget(), simulated(truth, 1000, s).__getitem__).threshold for s in range(100)
    ]
    assert found.count(0.5) >= 95


def test_the_first_failure_ends_the_search() -> None:
    asked = []

    def spoils(threshold: float) -> Iterator[bool]:
        asked.append(threshold)
        return iter([threshold < 0.8] * 10 + [False] * 990)

    outcome = calibrate([0.9, 0.7, 0.5], 1000, Budget(), spoils)
    assert asked == [0.9, 0.7] and outcome.threshold == 0.9
    strict, loose = outcome.rungs
    assert strict.passed and strict.prompts == 1000 and strict.spoilt == 0
    assert not loose.passed and loose.prompts == 5 and loose.spoilt == 5  # four are allowed: the fifth ends it
    assert calibrate([0.7], 1000, Budget(), spoils).threshold is None
    assert calibrate([0.9], 1000, Budget(), lambda _: iter([False] * 400)).threshold is None  # too few came
    with pytest.raises(UsageError, match="from strict to loose"):
        calibrate([0.5, 0.9], 1000, Budget(), spoils)


def test_a_target_that_solves_nothing_is_promised_nothing() -> None:
    """It has to solve ten times the loss, for certain: a judge that spoils a tenth of that must be seen."""
    budget = Budget()
    for solved in (0, 50, 100):
        with pytest.raises(UsageError, match="too little to lose"):
            budget.check_target(solved, 1000)
    budget.check_target(130, 1000)


def test_what_more_problems_would_buy() -> None:
    """With as many problems as it says the same rate passes, with some fewer it does not; a rate above never does."""
    budget = Budget()
    for rate in (0.0, 0.003, 0.008):
        count = budget.enough(rate, 0.0)
        assert count is not None
        assert upper_bound(int(np.ceil(rate * count)), count) <= 0.01
        less = int(0.8 * count)
        assert upper_bound(int(np.ceil(rate * less)), less) > 0.01
    assert budget.enough(0.01, 0.0) is None and budget.enough(0.5, 0.5) is None
    assert Budget(net=True).enough(0.02, 0.02) is not None


@pytest.mark.parametrize(("spoilt", "gained"), [(0.03, 0.02), (0.05, 0.03), (0.3, 0.28)])
def test_sampled_answers_are_bounded_by_the_difference(spoilt: float, gained: float) -> None:
    """Both happen by chance; the true cost is at the budget or above, and passes in at most 5% of 400 runs."""
    budget, count, wrong = Budget(spoilt - gained, net=True), 1000, 0
    for seed in range(400):
        luck = np.random.default_rng(seed).random(count)
        seen = np.where(luck < spoilt, 1, np.where(luck < spoilt + gained, -1, 0))
        wrong += calibrate([0.5], count, budget, lambda _, seen=seen: seen.tolist()).threshold is not None  # type: ignore[misc]
    assert wrong / 400 <= 0.05
    good = np.where(np.arange(4000) % 50 == 0, 1, np.where(np.arange(4000) % 50 == 1, -1, 0)).tolist()
    assert calibrate([0.5], 4000, Budget(0.02, net=True), lambda _: good).threshold == 0.5


class FakeEval:
    """Solves every third problem, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def answers(self, arm: Arm, problems: list[object]) -> list[Answer]:
        self.asked.append(len(problems))
        return [Answer(i % 3 == 0, [], [], [], 1, 0, 0) for i in range(len(problems))]


def test_a_calibration_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What was answered is not asked again, a line that was cut is, and other settings start again."""
    path, problems, settings = tmp_path / "calibration.jsonl", draw(10, 0), {"seed": 0}
    arm = Arm("judge", None, None)  # type: ignore[arg-type]

    def solve(settings: dict[str, object]) -> tuple[list[bool], list[int]]:
        harness = FakeEval()
        log = SolvedLog(path, settings, harness, problems, 4)  # type: ignore[arg-type]
        return list(log.solved(arm)), harness.asked

    whole, asked = solve(settings)
    assert asked == [4, 4, 2] and len(whole) == 10
    text = path.read_text(encoding="utf-8")
    assert solve(settings) == (whole, [])
    path.write_text(text[: text.index('"first": 8') + 5], encoding="utf-8")
    assert solve(settings) == (whole, [2])
    assert path.read_text(encoding="utf-8") == text
    assert solve({"seed": 1})[1] == [4, 4, 2]
    assert json.loads(path.read_text(encoding="utf-8").split("\n")[0]) == {"seed": 1}
