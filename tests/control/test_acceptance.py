"""The acceptance record: what it counts, which requests it follows, what it forgets."""

from __future__ import annotations

import random

import pytest

from foredraft.control.acceptance import AcceptanceRecord, FadingCounts
from foredraft.control.constants import POSITIONS


def test_what_comes_after_the_first_wrong_token_tells_nothing() -> None:
    counts = FadingCounts()
    counts.observe(5, 2)
    assert counts.hits[:4] == [1, 1, 0, 0] and counts.tries[:4] == [1, 1, 1, 0]
    counts.observe(0, 0)
    assert counts.tries[0] == 1


def test_far_positions_share_one_place() -> None:
    counts = FadingCounts()
    counts.observe(POSITIONS + 3, POSITIONS + 3)
    assert counts.tries[-1] == 4 and counts.mean(0.0, 1.0, 100) == pytest.approx(4 / 5)


def test_a_record_finds_the_chances_of_a_process() -> None:
    record, chance = AcceptanceRecord(), random.Random(3)
    for _ in range(4000):
        accepted = 0
        while accepted < 4 and chance.random() < 0.7:
            accepted += 1
        record.observe(1, "arm", 4, accepted)
    assert record.gains(2, "arm", 3, 0.1) == pytest.approx([0.7, 0.49, 0.343], abs=0.06)


def test_a_request_with_a_record_of_its_own_departs_from_the_others() -> None:
    record = AcceptanceRecord()
    for _ in range(200):
        record.observe(1, "arm", 1, 1)
    for _ in range(60):
        record.observe(2, "arm", 1, 0)
    own, new = (record.gains(request, "arm", 1, 0.5)[0] for request in (2, 3))
    assert own < 0.3 < new
    record.end(2)
    assert record.gains(2, "arm", 1, 0.5)[0] == new


def test_nothing_known_is_the_prior() -> None:
    assert AcceptanceRecord().gains(1, "arm", 3, 0.5) == pytest.approx([0.5, 0.25, 0.125])


def test_accepted_drafts_of_trees_follow_the_key_and_the_request() -> None:
    record = AcceptanceRecord()
    assert record.accepted_of_tree(1, "any") == pytest.approx(1.5)
    for request in range(10):
        for _ in range(30):
            record.observe_tree(request, "good", 4)
            record.observe_tree(request, "poor", 1)
    new = [record.accepted_of_tree(99, key) for key in ("good", "poor")]
    assert new == pytest.approx([4, 1], abs=0.2)
    for _ in range(30):
        record.observe_tree(99, "good", 2)
    own = [record.accepted_of_tree(99, key) for key in ("good", "poor")]
    assert own[0] < 0.8 * new[0] and own[1] < 0.8 * new[1]  # what it showed with one key holds for the other
    record.end(99)
    assert record.accepted_of_tree(99, "poor") > own[1]
