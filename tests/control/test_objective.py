"""The objective in its single, batch and array forms: the highest rate of all, and the same in each form."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from foredraft.control.objective import best_count, best_counts, rate, rates


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("slope", [0.0, 0.05, 0.3, 1.0])
def test_the_best_count_is_the_best_of_all(alpha: float, slope: float) -> None:
    gains = [alpha ** (i + 1) for i in range(12)]
    rates = [(1 + sum(gains[:n])) / (1 + slope * n) for n in range(13)]
    count, rate = best_count(gains, lambda n: 1 + slope * n)
    assert rate == pytest.approx(max(rates)) and rates[count] == pytest.approx(rate)


def test_nothing_is_drafted_where_nothing_pays() -> None:
    assert best_count([0.3, 0.1], lambda n: 1.0 + 0.5 * n) == (0, 1.0)
    assert best_count([], lambda n: 2.0) == (0, 0.5)


@pytest.mark.parametrize("seed", range(10))
def test_the_array_form_is_the_single_form_row_by_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gains, seconds = np.sort(rng.random((4, 6)))[:, ::-1], 1 + rng.random(7).cumsum()
    found = rates(gains, seconds)
    for line, chain in zip(found, gains.tolist(), strict=True):
        assert line.tolist() == pytest.approx([rate(sum(chain[:n]), seconds[n]) for n in range(7)])
        count, best = best_count(chain, lambda n: float(seconds[n]))
        assert count == line.argmax() and best == pytest.approx(line.max())
        count, best = best_count(chain, lambda n: float(seconds[n]), least=1)
        assert count == 1 + line[1:].argmax() and best == pytest.approx(line[1:].max())


def test_one_sequence_is_a_batch_of_one() -> None:
    gains = [0.9, 0.6, 0.2]
    (count,), accepted = best_counts([gains], lambda n: 1 + 0.3 * n)
    assert count == best_count(gains, lambda n: 1 + 0.3 * n)[0] and accepted == pytest.approx(sum(gains[:count]))


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

    counts, promised = best_counts(gains, lambda n: steps[n])
    best = max(rate(cut) for cut in itertools.product(*(range(len(line) + 1) for line in gains)))
    assert rate(tuple(counts)) == pytest.approx(best)
    assert promised == pytest.approx(sum(sum(line[:n]) for line, n in zip(gains, counts, strict=True)))


def test_nothing_to_share() -> None:
    assert best_counts([[], []], lambda n: 1.0 + n) == ([0, 0], 0.0)
