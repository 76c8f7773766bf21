"""A look-up is asked while what it finds beyond cheaper ones is worth its time, and rests where it is not."""

from __future__ import annotations

import pytest

from foredraft.control.constants import LOOKUP_EXTRA
from foredraft.control.lookup_worth import LookupWorth

STEP = 10e-3  # seconds of a plain step


def rounds(worth: LookupWorth, right: int, seconds: float, count: int, request: int = 0, cheap: int = 0) -> int:
    """Rounds of `count` in which look-up 1 is asked; look-up 0 costs nothing and finds `cheap` tokens."""
    asked = 0
    for _ in range(count):
        found = {0: cheap}
        if worth.asks(request, 1, STEP):
            worth.took(1, seconds)
            found[1], asked = right, asked + 1
        worth.observe(request, found)
    return asked


@pytest.mark.parametrize(
    ("right", "seconds", "cheap", "pays"),
    [
        (0, 1e-6, 0, True),  # too quick to matter
        (1, 1e-3, 0, True),  # a token of 10 ms for 1 ms
        (0, 1e-3, 0, False),  # finds nothing
        (2, 1e-3, 2, False),  # finds what a cheaper one finds
        (3, 1e-3, 2, True),
        (1, 20e-3, 0, False),  # takes two steps for a token
    ],
)
def test_asked_where_it_pays(right: int, seconds: float, cheap: int, pays: bool) -> None:
    worth = LookupWorth()
    rounds(worth, right, seconds, 60, cheap=cheap)
    asked = rounds(worth, right, seconds, 60, cheap=cheap)
    assert asked == 60 if pays else 1 <= asked <= 12


def test_it_comes_back_when_the_text_changes() -> None:
    worth = LookupWorth()
    rounds(worth, 0, 1e-3, 100)
    rounds(worth, 4, 1e-3, 150)
    assert rounds(worth, 4, 1e-3, 40) == 40


def test_a_new_request_starts_from_what_all_have_seen() -> None:
    worth = LookupWorth()
    assert worth.extra(7, 1) == LOOKUP_EXTRA
    rounds(worth, 0, 1e-3, 100)
    assert worth.extra(7, 1) < 0.3 * LOOKUP_EXTRA
    assert rounds(worth, 0, 1e-3, 40, request=7) <= 12
    worth.end(7)
    assert not [key for key in (*worth._own, *worth._rests) if key[0] == 7]


def test_a_hiccup_counts_little() -> None:
    worth = LookupWorth()
    for seconds in (1e-4, 1e-4, 1.0):
        worth.took(1, seconds)
    assert worth.seconds(1) < 2e-4
