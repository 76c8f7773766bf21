"""Drafts of many sequences in one pass: shared out for the best of all, and not looked up where that does not pay."""

from __future__ import annotations

import itertools
import random

import pytest

from foredraft.control.lookup_budget import LONGEST, Rest, shared_counts


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_promises_more(seed: int) -> None:
    """Against every way to cut three chains, on a cost curve with steps."""
    rng = random.Random(seed)
    gains = []
    for _ in range(3):
        line, chance = [], 1.0
        for _ in range(rng.randrange(4)):
            chance *= rng.uniform(0.2, 1.0)
            line.append(chance)
        gains.append(line)
    steps = sorted(rng.uniform(1.0, 3.0) for _ in range(12))

    def rate(counts: tuple[int, ...]) -> float:
        return (3 + sum(sum(line[:n]) for line, n in zip(gains, counts, strict=True))) / steps[sum(counts)]

    counts, promised = shared_counts(gains, lambda n: steps[n])
    best = max(rate(cut) for cut in itertools.product(*(range(len(line) + 1) for line in gains)))
    assert rate(tuple(counts)) == pytest.approx(best)
    assert promised == pytest.approx(sum(sum(line[:n]) for line, n in zip(gains, counts, strict=True)))


def test_nothing_to_share() -> None:
    assert shared_counts([[], []], lambda n: 1.0 + n) == ([0, 0], 0.0)


def rounds_looked(rest: Rest, rounds: int, batch: int, gained: float) -> list[int]:
    """The rounds in which a crowd looks; a pass takes 20 ms, with drafts 22, looking 4."""
    looked = []
    for i in range(rounds):
        if not rest.holds(batch):
            looked.append(i)
            rest.looked(batch, 0.004, gained, 0.020, 0.022)
    return looked


def test_looking_rests_ever_longer_where_it_does_not_pay() -> None:
    rest = Rest()
    assert rounds_looked(rest, 200, 16, gained=2.0)[:7] == [0, 2, 5, 10, 19, 36, 69]
    assert rest.left <= LONGEST
    assert rounds_looked(rest, 40, 8, gained=2.0)[0] == 0, "half of them have gone: look again"


def test_looking_goes_on_where_it_pays() -> None:
    assert rounds_looked(Rest(), 50, 16, gained=6.0) == list(range(50))


def test_what_pays_again_is_looked_for_again() -> None:
    rest = Rest()
    rounds_looked(rest, 100, 16, gained=0.0)
    later = rounds_looked(rest, 100, 16, gained=8.0)
    assert later[0] <= LONGEST and later == list(range(later[0], 100))
