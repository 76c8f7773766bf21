"""Costs: interpolation of the profile, corrections by what was timed, and the cache."""

from __future__ import annotations

import pytest

from foredraft.control.constants import HOLD
from foredraft.control.cost import CostModel, Costs, DraftTiming

COSTS = CostModel((1, 4, 16), (64, 512), (1, 4), (((1.0, 1.3, 2.5), (2.0, 2.3, 3.5)), ((2.0, 3.0, 7.0),) * 2))


def test_points_are_met_and_what_lies_between_is_linear() -> None:
    assert COSTS.seconds(4, 64, 1) == pytest.approx(1.3)
    assert COSTS.seconds(10, 64, 1) == pytest.approx(1.9)
    assert COSTS.seconds(1, 288, 1) == pytest.approx(1.5)
    assert COSTS.seconds(1, 64, 2.5) == pytest.approx(1.5)


def test_beyond_the_points_the_slope_goes_on_but_nothing_gets_cheaper_than_the_first() -> None:
    assert COSTS.seconds(28, 64, 1) == pytest.approx(3.7)
    assert COSTS.seconds(1, 960, 1) == pytest.approx(3.0)
    assert COSTS.seconds(1, 0, 1) == COSTS.seconds(1, 64, 1)


def test_it_is_read_back_as_it_was_written() -> None:
    assert CostModel.from_json(COSTS.to_json()) == COSTS


def test_costs_follow_what_passes_take() -> None:
    """The machine is twice as slow now, and passes of 16 rows five times: both are found, others follow the rest."""
    live = Costs(COSTS)
    assert live.seconds(4, 64, 1) == COSTS.seconds(4, 64, 1)
    for _ in range(200):
        for rows in (1, 2, 4):
            live.observe(rows, 64, 1, 2 * COSTS.seconds(rows, 64, 1))
        live.observe(16, 64, 1, 5 * COSTS.seconds(16, 64, 1))
    for rows, slower in ((1, 2.0), (4, 2.0), (16, 5.0)):
        assert live.seconds(rows, 64, 1) / COSTS.seconds(rows, 64, 1) == pytest.approx(slower, rel=0.15)
    assert 2.0 < live.seconds(8, 64, 1) / COSTS.seconds(8, 64, 1) < 3.0  # never seen: as all passes together


def test_a_hiccup_moves_costs_little() -> None:
    live = Costs(COSTS)
    for _ in range(100):
        live.observe(4, 64, 1, COSTS.seconds(4, 64, 1))
    live.observe(4, 64, 1, 1000.0)
    live.observe(4, 64, 1, 0.0)
    assert live.seconds(4, 64, 1) == pytest.approx(COSTS.seconds(4, 64, 1), rel=0.05)


def test_a_timing_does_not_remember_how_long_it_took_to_begin() -> None:
    """A drafter that compiles in its first round and captures in its second is not slow for good."""
    timing = DraftTiming()
    for seconds in (3.0, 0.5, 0.002, 0.002, 0.002):
        timing.follow(4 * seconds, 4, 4)
    assert timing.level_seconds == pytest.approx(0.002) and timing.seconds(4) == pytest.approx(0.008)
    for _ in range(60):
        timing.follow(4 * 0.006, 4, 4)
    assert timing.seconds(4) == pytest.approx(0.024, rel=0.05)


def test_a_timing_tells_the_first_level_from_the_others() -> None:
    """Rounds of one level say nothing about further ones; rounds of several tell both, whatever the mixture."""
    timing = DraftTiming(0.001)
    for _ in range(40):
        timing.follow(0.003, 1, 1)
    assert timing.first_seconds == pytest.approx(0.003) and timing.level_seconds == 0.001
    for i in range(400):
        levels = (1, 5, 2, 3)[i % 4]
        timing.follow(0.003 + (levels - 1) * 0.0005, levels, levels)
    assert timing.first_seconds == pytest.approx(0.003, rel=0.02)
    assert timing.level_seconds == pytest.approx(0.0005, rel=0.02)
    assert timing.seconds(3) == pytest.approx(0.004, rel=0.02) and timing.seconds(0) == 0.0


# --- the cache ------------------------------------------------------------------------------------------------------

MODEL = CostModel((1, 64), (64, 1024), (1, 8), (((1.0, 2.0), (1.5, 4.0)), ((2.0, 9.0), (3.0, 20.0))))


def test_it_answers_as_the_profile_does() -> None:
    costs = Costs(MODEL)
    for rows, context, batch in ((1, 64, 1), (17, 64, 1), (17, 640, 1), (64, 1024, 8)):
        assert costs.seconds(rows, context, batch) == MODEL.seconds(rows, context, batch)


def test_the_profile_is_asked_once_until_passes_have_been_timed() -> None:
    costs, asked = Costs(MODEL), []
    true = costs._corrected
    costs._corrected = lambda *question: asked.append(question) or true(*question)  # type: ignore[method-assign,func-returns-value]
    before = [costs.seconds(5, 100 + i % 2, 1) for i in range(20)]
    assert len(asked) == 1 and len(set(before)) == 1
    for _ in range(HOLD):
        costs.observe(5, 100, 1, 3 * before[0])
    assert costs.seconds(5, 100, 1) > 2 * before[0] and len(asked) == 2
