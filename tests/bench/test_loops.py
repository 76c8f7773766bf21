"""Loops: found where there is one, and nowhere else."""

from __future__ import annotations

import random

import pytest

from foredraft.core.repetition import LONGEST, Loop, find_loop

TEXT = list(range(100, 130))


@pytest.mark.parametrize("period", [1, 2, 5, 16, LONGEST])
def test_a_loop_is_cut_after_its_first_pass(period: int) -> None:
    block = list(range(period))
    looped = TEXT + block * max(3, -(-16 // period))
    loop = find_loop(looped)
    assert loop == Loop(len(TEXT), period)
    assert loop.cut == len(TEXT) + period


def test_half_a_block_at_the_end_belongs_to_it() -> None:
    assert find_loop(TEXT + [1, 2, 3, 4] * 5 + [1, 2]) == Loop(len(TEXT), 4)


def test_a_stop_token_behind_a_loop_does_not_hide_it() -> None:
    assert find_loop(TEXT + [1, 2] * 10 + [9]) is None
    assert find_loop(TEXT + [1, 2] * 10 + [9], {9}) == Loop(len(TEXT), 2)


@pytest.mark.parametrize(
    "ids",
    [
        [],
        TEXT,
        [*TEXT, 1, 1, 1, 1],  # too short to be called a loop
        TEXT + list(range(40)) * 2,  # only twice
        TEXT + list(range(LONGEST + 1)) * 3,  # a longer block than we look for
        [1, 2] * 10 + TEXT,  # it got out again
    ],
)
def test_no_loop_is_seen_where_there_is_none(ids: list[int]) -> None:
    assert find_loop(ids) is None


def test_the_earliest_cut_wins_and_nothing_after_it_is_new() -> None:
    generator = random.Random(0)
    for _ in range(200):
        head = [generator.randrange(4) for _ in range(generator.randrange(20))]
        block = [generator.randrange(4) for _ in range(generator.randrange(1, 9))]
        ids = head + block * 20
        loop = find_loop(ids)
        assert loop is not None and loop.cut <= len(head) + len(block)
        assert all(ids[i] == ids[i - loop.period] for i in range(loop.cut, len(ids)))
