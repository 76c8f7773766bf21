"""Rules that decide how long to draft: what each decides, that none bends the distribution, and how fast they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch

from foredraft.control.lengths.base import Fixed, Heuristic, LengthRule
from foredraft.control.lengths.expected import Expected
from foredraft.control.lengths.predicted import Predicted, PredictedOrConfident
from foredraft.control.lengths.thompson import Belief, CalibratedThompson, CostThompson, Logistic, Thompson
from foredraft.control.objective import best_count
from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.rng.enumerating import distribution_of_outcomes
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain, Stop
from foredraft.core.shapes.step import Step, Stepper
from foredraft.core.shapes.stops import AdaptiveConfidence, Confidence, Entropy, PathConfidence
from foredraft.core.trees.editing import cut
from foredraft.core.verify import RULES
from foredraft.types import Budget, DraftBatch, Kind, SamplingParams, Topology
from tests.kit.exactness import distortion
from tests.kit.growing import PLENTY, TableStepper, grown_method
from tests.kit.length_races import Runner, calibration, linear_times, runs_of, steady, sweep
from tests.kit.tables import TableModel, dirichlet, mixed

from . import paces

CPU = torch.device("cpu")


def step_of(*distributions: Sequence[float]) -> Step:
    """A step whose rows have these distributions."""
    params = [SamplingParams(temperature=1.0)] * len(distributions)
    rows = torch.arange(len(distributions))[:, None]
    return Step(torch.tensor(distributions).log(), rows, ParamBlock.of(params, len(distributions[0])))


def lengths_of(stop: Stop, *confidences: float, ids: Sequence[int] = (0,)) -> int:
    """How many tokens a chain draws whose distributions have these largest probabilities, one after another."""
    state = stop.begin(ids, CPU)
    for depth, sure in enumerate(confidences):
        state, on = stop.go_on(state, step_of(*[(sure, 1 - sure)] * len(ids)), depth)
        if not on[0]:
            return depth + 1
    return len(confidences) + 1


# --- what each rule decides -----------------------------------------------------------------------------------------


def test_a_fixed_length_stays_within_the_limit() -> None:
    assert [Fixed(4).longest(0, limit) for limit in (0, 3, 9)] == [0, 3, 4]


def test_the_heuristic_climbs_by_two_and_falls_by_one() -> None:
    rule, seen = Heuristic(), []
    for drafted, accepted in [(5, 5), (7, 7), (9, 3), (0, 0), (8, 0), *[(1, 0)] * 9]:
        rule.observe(1, drafted, accepted)
        seen.append(rule.longest(1, 99))
    assert seen == [7, 9, 8, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 1]
    assert rule.longest(2, 99) == 5 and rule.longest(1, 0) == 0


def test_a_belief_counts_what_was_seen_and_forgets() -> None:
    """Of five drafts, three stood and one fell; nothing is known of the last."""
    rule = Thompson(Belief(4.0, 2.0), keep=0.5)
    rule.observe(0, 5, 3)
    assert rule.belief(0) == Belief(7.0, 3.0, 1)
    rule.observe(0, 2, 2)
    assert rule.belief(0) == Belief(4 + 0.5 * 3 + 2, 2 + 0.5 * 1, 2)
    rule.observe(0, 0, 0)
    assert rule.belief(0) == Belief(4 + 0.5 * 3.5, 2 + 0.5 * 0.5, 3)


def test_coins_fall_with_the_mean_of_the_belief() -> None:
    """The length is geometric, at most the limit, and the same for every request that has seen the same."""
    rules = [Thompson(Belief(3.0, 1.0), seed=seed) for seed in range(4000)]
    lengths = np.array([rule.longest(seed % 7, 6) for seed, rule in enumerate(rules)])
    for k in range(1, 7):
        assert np.mean(lengths >= k) == pytest.approx(0.75 ** (k - 1), abs=0.03)
    assert lengths.max() == 6
    assert rules[5].longest(1, 6) == rules[5].longest(2, 6)
    later = []
    for _ in range(12):  # the numbers of a round are its own
        later.append(rules[0].longest(3, 6))
        rules[0].observe(3, 0, 0)
    assert len(set(later)) > 1


def test_thompson_over_lengths_drafts_what_is_best_at_a_rate_that_it_believes() -> None:
    known = CostThompson(Belief(85000.0, 15000.0), seconds=paces.TIMES)
    assert known.longest(0, 12) == best_count([0.85**i for i in range(1, 13)], paces.TIMES)[0] == 7
    assert known.longest(0, 4) == 4 and known.longest(0, 0) == 0
    assert CostThompson(Belief(1.0, 9999.0), seconds=paces.TIMES).longest(0, 12) == 0
    doubtful = [CostThompson(seed=seed, seconds=paces.TIMES) for seed in range(3000)]
    lengths = np.array([rule.longest(0, 12) for rule in doubtful])
    rates = np.random.default_rng(0).beta(4, 2, 3000)
    hoped = np.array([best_count([r**i for i in range(1, 13)], paces.TIMES)[0] for r in rates])
    for k in (2, 4, 8):
        assert np.mean(lengths >= k) == pytest.approx(np.mean(hoped >= k), abs=0.05)


def test_the_calibrated_coin_weighs_belief_and_confidence() -> None:
    """Beta(3 + 4 mu, 1 + 4 (1 - mu)) at mu = 0.5 has mean 5 / 8; each row has a number of its own round."""
    falls = []
    for seed in range(3000):
        rule = CalibratedThompson(Belief(3.0, 1.0), seed=seed, calibrate=lambda sure: sure - 0.4)
        _, on = rule.go_on(rule.begin((4,), CPU), step_of((0.9, 0.1)), 0)
        falls.append(bool(on))
    assert np.mean(falls) == pytest.approx(5 / 8, abs=0.035)
    rule = CalibratedThompson(Belief(3.0, 1.0), seed=7)
    rule.observe(1, 4, 0)
    for depth in range(20):
        steps = [step_of((0.6, 0.4)), step_of((0.9, 0.1))]
        _, both = rule.go_on(rule.begin((0, 1), CPU), step_of((0.6, 0.4), (0.9, 0.1)), depth)
        alone = [rule.go_on(rule.begin((id,), CPU), step, depth)[1] for id, step in enumerate(steps)]
        assert both.tolist() == torch.cat(alone).tolist()


def test_a_logistic_calibration_is_the_identity_unless_fitted() -> None:
    sure = torch.tensor([0.1, 0.5, 0.9])
    assert torch.allclose(Logistic()(sure), sure, atol=1e-6)
    assert torch.allclose(Logistic(0.0, 0.0)(sure), torch.tensor(0.5))


def test_the_cost_model_drafts_what_pays() -> None:
    """Before anything is known a draft is right with 0.6; a request of its own record leaves that."""
    rule = Expected(seconds=linear_times(0.1, 0.01))
    assert rule.longest(0, 12) == best_count([0.6**i for i in range(1, 13)], linear_times(0.1, 0.01))[0] == 3
    for _ in range(40):
        rule.observe(0, 8, 8)
    assert rule.longest(0, 12) == 12 and rule.longest(0, 5) == 5
    assert rule.longest(1, 12) > 3  # a newcomer starts from what all requests have shown


def test_the_cost_model_tries_again_where_nothing_pays() -> None:
    rule = Expected(seconds=linear_times(0.5, 0.2), probe=5)
    for _ in range(30):
        rule.observe(0, 1, 0)
    tried = []
    for _ in range(12):
        tried.append(rule.longest(0, 4))
        rule.observe(0, tried[-1], 0)
    assert tried == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]


def test_a_predicted_length_is_rounded_and_kept_within_bounds() -> None:
    rule = Predicted({0: 2.6, 1: -1.0, 2: 99.0}.__getitem__)
    assert [rule.longest(id, 8) for id in range(3)] == [3, 0, 8]


def test_prediction_and_path_must_agree_to_stop() -> None:
    rule = PredictedOrConfident({0: 3.0, 1: 1.0}.__getitem__, threshold=0.55)
    assert lengths_of(rule, 0.5, 0.5, 0.5, 0.5, ids=(0,)) == 3  # doubtful from the start, but predicted
    assert lengths_of(rule, 0.9, 0.9, 0.6, 0.9, ids=(1,)) == 3  # beyond the prediction as long as the path is sure
    assert lengths_of(rule, 0.5, 0.9, ids=(1,)) == 1


def test_entropy_stops_after_a_spread_distribution() -> None:
    rule = Entropy(0.6)  # of (0.5, 0.5) it is 0.693 nats, of (0.8, 0.2) 0.500
    assert lengths_of(rule, 0.8, 0.8, 0.5, 0.8) == 3
    assert lengths_of(Entropy(0.7), 0.8, 0.5) == 3


def test_an_adaptive_threshold_stays_a_probability() -> None:
    """After a long bad stretch it comes back as soon as after a short one."""
    rule = AdaptiveConfidence()
    for hits, end in ((0, 1.0), (1, 0.0)):
        for _ in range(3000):
            rule.longest(0, 8)
            rule.observe(0, 1, hits)
        assert rule.begin([0], torch.device("cpu")).tolist() == [end]


def test_a_threshold_follows_the_acceptance_rate() -> None:
    """The update of Draft & Verify by hand, and what it spares: a draft that was as long as allowed."""
    rule = AdaptiveConfidence(goal=0.9, first=0.6)
    assert rule.longest(0, 8) == 8
    rule.observe(0, 4, 1)  # the rate falls to (0.9 + 0.25) / 2
    assert float(rule.begin((0,), CPU)) == pytest.approx(0.9 * 0.6 + 0.1 * 0.61)
    raised = float(rule.begin((0,), CPU))
    rule.observe(0, 4, 4)  # (0.575 + 1) / 2 is still below
    assert float(rule.begin((0,), CPU)) == pytest.approx(raised + 0.001)
    for _ in range(3):
        rule.observe(0, 4, 4)
    high = float(rule.begin((0,), CPU))
    rule.observe(0, 8, 8)
    assert float(rule.begin((0,), CPU)) == high
    rule.observe(0, 7, 7)
    assert float(rule.begin((0,), CPU)) == pytest.approx(high - 0.001)
    assert rule.begin((0, 1), CPU)[1] == pytest.approx(0.6)  # another request has its own
    assert lengths_of(rule, 0.7, 0.59, 0.7, ids=(1,)) == 2


# --- none of them bends the distribution -----------------------------------------------------------------------------

TARGETS = [dirichlet(3, seed, alpha=0.5) for seed in (35, 38)]
PAIRS = [(target, mixed(target, dirichlet(3, 135 + 3 * i, alpha=0.5), 0.5)) for i, target in enumerate(TARGETS)]
STOPS: dict[str, Callable[[], Stop]] = {
    "entropy": lambda: Entropy(0.75),
    "adaptive confidence": lambda: AdaptiveConfidence(first=0.6),
    "predicted or confident": lambda: PredictedOrConfident(lambda id: 1.0, 0.5),
    "calibrated path": lambda: PathConfidence(0.4, Logistic(0.8, 0.5)),
    "calibrated coin": lambda: CalibratedThompson(Belief(1.0, 1.0), weight=20.0),
    "calibrated coin of another seed": lambda: CalibratedThompson(Belief(1.0, 1.0), weight=20.0, seed=10),
}
TOLERANCE = 1e-6  # draft distributions are float32


@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
@pytest.mark.parametrize("name", STOPS)
def test_chains_that_stop_are_exact(name: str, batched: bool) -> None:
    """The joint distribution of four tokens under the p/q rule, by enumeration."""
    for target, drafter in PAIRS:
        method = grown_method(Chain(3, STOPS[name]()), RULES["residual"], target, drafter, batched=batched)
        assert distortion(method, target, 4) < TOLERANCE


@pytest.mark.parametrize("name", STOPS)
def test_these_stops_do_stop(name: str) -> None:
    """After some draws of a pair above the chain goes on, after others it ends."""
    distributions = [
        distribution_of_outcomes(partial(_length, Chain(3, STOPS[name]()), drafter)) for _, drafter in PAIRS
    ]
    assert max(len(distribution) for distribution in distributions) > 1


def _length(chain: Chain, drafter: TableModel, rng: Rng) -> int:
    return chain.grow(TableStepper(drafter), [PLENTY], rng).lengths()[0]


class Peeking:
    """A chain that looks at its last draw and drops it where it was unlikely: what invariant 5 forbids."""

    kind, topology, nodes = Kind.SAMPLED_WITHOUT_REPLACEMENT, Topology.CHAIN, 2
    reads = numbered = nodes

    def grow(self, stepper: Stepper, budgets: Sequence[Budget], rng: Rng) -> DraftBatch:
        drafts = Chain(2, Confidence(0.45)).grow(stepper, budgets, rng)
        last = int(drafts.length[0]) - 1
        assert drafts.distributions is not None
        chance = drafts.distributions.at(torch.tensor([last])).dense()[0, drafts.token[0, last]]
        return cut(drafts, [last + int(chance >= 0.45)])


def test_a_stop_that_looks_at_the_draw_is_biased() -> None:
    target, drafter = PAIRS[0]
    assert distortion(grown_method(Peeking(), RULES["residual"], target, drafter), target, 3) > 0.1
    matched = grown_method(Peeking(), RULES["sample-and-match"], target, drafter)
    assert distortion(matched, target, 3) < TOLERANCE  # which is why whatever was chosen goes there


# --- races ----------------------------------------------------------------------------------------------------------

HELD_TO_IT = ["Thompson over lengths", "predicted rejection 0.5 (SpecDec++)", "cost model"]
SINGLE = [course for course in paces.COURSES if course != paces.MIXTURE]


@pytest.fixture(scope="module", params=[20, pytest.param(paces.REQUESTS, marks=pytest.mark.slow)])
def requests(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def best(requests: int) -> dict[str, float]:
    return {name: max(sweep(course.first(requests), paces.TIMES).values()) for name, course in paces.COURSES.items()}


@pytest.mark.parametrize("course", SINGLE)
@pytest.mark.parametrize("name", HELD_TO_IT)
def test_rules_come_close_to_the_best_fixed_length(
    name: str, course: str, requests: int, best: dict[str, float]
) -> None:
    assert paces.speed(name, course, requests=requests) > 0.97 * best[course]


@pytest.mark.parametrize("name", HELD_TO_IT)
def test_rules_beat_every_fixed_length_on_a_mixture(name: str, requests: int, best: dict[str, float]) -> None:
    assert paces.speed(name, paces.MIXTURE, requests=requests) > 1.03 * best[paces.MIXTURE]


def test_coins_alone_are_slower_than_the_best_fixed_length(requests: int, best: dict[str, float]) -> None:
    """A blind random length is a mixture of fixed ones and knows no costs: the reason for `CostThompson`."""
    name = "Thompson, coins (EESD)"
    speeds = {course: paces.speed(name, course, requests=requests) for course in ("0.4", "0.6", "0.85")}
    assert all(speed < 0.97 * best[course] for course, speed in speeds.items())


@pytest.mark.parametrize("name", paces.RULES)
def test_nothing_is_remembered_of_requests_that_are_over(name: str) -> None:
    setting = paces.Setting(Runner(steady(0.7, 3, 40)), paces.TIMES, calibration(paces.HELD_OUT["0.6"]))
    rule, stop = paces.RULES[name](setting)
    result = setting.runner.race(paces.TIMES, rule, stop)
    assert result.tokens == 3 * 40
    assert not remembered(rule)


def remembered(rule: LengthRule) -> list[object]:
    """What a rule keeps by sequence id."""
    kept = [value for value in vars(rule).values() if isinstance(value, dict)]
    return [one for each in [*kept, rule.record.own if isinstance(rule, Expected) else {}] for one in each]


# --- the simulator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 0.7])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_fixed_length_is_as_fast_as_theory_says(rate: float, length: int) -> None:
    """Independent flips: a round yields (1 - a^(k + 1)) / (1 - a) tokens."""
    speed = Runner(steady(rate, 40, 1000)).race(paces.TIMES, Fixed(length)).speed
    hoped = (1 - rate ** (length + 1)) / (1 - rate) / paces.TIMES(length)
    assert speed == pytest.approx(hoped, rel=0.015)


def test_a_stop_that_never_stops_is_a_fixed_length() -> None:
    course = steady(0.6, 5, 60)
    with_stop = Runner(course).race(paces.TIMES, Fixed(4), Confidence(0.0))
    assert with_stop == Runner(course).race(paces.TIMES, Fixed(4))


def test_runs_end_at_the_first_flip_that_fails() -> None:
    passed = torch.tensor([[True, True, False, True], [False, True, True, True]])
    assert runs_of(passed).tolist() == [[2, 1, 0, 1], [0, 3, 2, 1]]


@pytest.mark.parametrize("course", paces.COURSES)
def test_confidence_tells_of_the_chance_but_not_exactly(course: str) -> None:
    """Flips fall as the chances say; the raw confidence is too high, the calibrated one is right on other texts."""
    texts = paces.COURSES[course]
    passed = texts.passed.float()
    assert float(passed.mean()) == pytest.approx(float(texts.chance.mean()), abs=0.02)
    assert float(texts.confidence.mean() - passed.mean()) > 0.01
    calibrated = calibration(paces.HELD_OUT[course])(texts.confidence)
    assert float(calibrated.mean()) == pytest.approx(float(passed.mean()), abs=0.02)
    seen = torch.corrcoef(torch.stack((texts.confidence.flatten(), texts.chance.flatten())))[0, 1]
    assert 0.5 < float(seen) < 0.95


def test_the_table_has_a_line_for_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {course: steady(0.6, 2, 30) for course in paces.COURSES}
    monkeypatch.setattr(paces, "COURSES", short)
    assert [line.split(" | ")[0] for line in paces.table().splitlines()[4:]] == [f"| {name}" for name in paces.RULES]
