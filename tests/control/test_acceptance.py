"""Records of acceptance: what they count, whom they follow, what they forget."""

from __future__ import annotations

import random

import pytest

from foredraft.control.acceptance import DEPTHS, Record, Survival, Yields


def test_what_lies_behind_the_first_wrong_token_tells_nothing() -> None:
    survival = Survival()
    survival.observe(5, 2)
    assert survival.hits[:4] == [1, 1, 0, 0] and survival.tries[:4] == [1, 1, 1, 0]
    survival.observe(0, 0)
    assert survival.tries[0] == 1


def test_far_positions_share_one_place() -> None:
    survival = Survival()
    survival.observe(DEPTHS + 3, DEPTHS + 3)
    assert survival.tries[-1] == 4 and survival.chance(100, 0.0, 1.0) == pytest.approx(4 / 5)


def test_a_record_finds_the_chances_of_a_process() -> None:
    record, chance = Record(), random.Random(3)
    for _ in range(4000):
        accepted = 0
        while accepted < 4 and chance.random() < 0.7:
            accepted += 1
        record.observe(1, "arm", 4, accepted)
    assert record.gains(2, "arm", 3, 0.1) == pytest.approx([0.7, 0.49, 0.343], abs=0.06)


def test_a_request_with_a_record_of_its_own_departs_from_the_others() -> None:
    record = Record()
    for _ in range(200):
        record.observe(1, "arm", 1, 1)
    for _ in range(60):
        record.observe(2, "arm", 1, 0)
    own, new = (record.gains(request, "arm", 1, 0.5)[0] for request in (2, 3))
    assert own < 0.3 < new
    record.end(2)
    assert record.gains(2, "arm", 1, 0.5)[0] == new


def test_nothing_known_is_the_prior() -> None:
    assert Record().gains(1, "arm", 3, 0.5) == pytest.approx([0.5, 0.25, 0.125])


def test_yields_follow_the_key_and_the_request() -> None:
    yields = Yields(1.5)
    assert yields.expected(1, "any") == pytest.approx(1.5)
    for request in range(10):
        for _ in range(30):
            yields.observe(request, "good", 4)
            yields.observe(request, "poor", 1)
    new = [yields.expected(99, key) for key in ("good", "poor")]
    assert new == pytest.approx([4, 1], abs=0.2)
    for _ in range(30):
        yields.observe(99, "good", 2)
    own = [yields.expected(99, key) for key in ("good", "poor")]
    assert own[0] < 0.8 * new[0] and own[1] < 0.8 * new[1]  # what it showed with one key holds for the other
    yields.end(99)
    assert yields.expected(99, "poor") > own[1]
