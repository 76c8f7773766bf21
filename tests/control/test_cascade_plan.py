"""Plans of cascades: the closed forms of the paper, a simulation of a deeper one, the search, and the spelling."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from foredraft.control.cascade_plan import Levels, Plan, Stage, choose, read_plan, spelled_plan, tidy
from foredraft.errors import UsageError
from tests.kit import ewif

RATES = ewif.Rates(good=0.7, cheap=0.5, reviewed=0.4, good_cost=0.05)
FLAT = Levels(((1.0, 0.7, 0.5), (1.0, 1.0, 0.4)), (lambda _: 1.0, lambda _: 0.05, lambda _: 0.0))
DEEP = Levels(
    ((1.0, 0.8, 0.6, 0.4), (1.0, 1.0, 0.7, 0.5), (1.0, 1.0, 1.0, 0.6)),
    (lambda rows: 1 + 0.02 * rows, lambda rows: 0.2 + 0.01 * rows, lambda _: 0.05, lambda _: 1e-4),
)


@pytest.mark.parametrize(("n", "k", "m"), [(3, 5, 0), (3, 0, 6), (5, 0, 0), (2, 4, 3), (0, 0, 4), (0, 0, 0)])
def test_two_drafters_are_the_papers_formulas(n: int, k: int, m: int) -> None:
    plan, known = (Stage(n, (Stage(k),)), Stage(m)), ewif.Plan(n, k, m)
    assert FLAT.tokens(plan) == pytest.approx(ewif.tokens(RATES, known), abs=1e-6)
    assert FLAT.rate(plan) == pytest.approx(ewif.factor(RATES, known), abs=1e-6)
    assert FLAT.rate(tidy(plan)) == pytest.approx(FLAT.rate(plan))


def test_the_vectors_of_the_specification() -> None:
    """K.5."""
    assert FLAT.tokens(read_plan("3(5)", 2)) == pytest.approx(2.8697, abs=5e-5)
    assert FLAT.rate(read_plan("3(5)", 2)) == pytest.approx(2.4954, abs=5e-5)
    assert FLAT.rate(read_plan("3+6", 2)) == pytest.approx(2.4962, abs=5e-5)


def simulated(levels: Levels, plan: Plan, rng: np.random.Generator) -> int:
    """Tokens of one round: sources are drafted stage by stage, reviews keep a beginning of them."""

    def draft(stages: Plan, first: int) -> list[int]:
        out: list[int] = []
        for source, stage in enumerate(stages, start=first):
            for _ in range(stage.count):
                kept = [] if source == levels.last else passed(draft(stage.inner, source + 1), source)
                out += [source] * (len(kept) + 1)  # what passed counts as the reviewer's
        return out

    def passed(sources: list[int], reviewer: int) -> list[int]:
        for i, source in enumerate(sources):
            if rng.random() >= levels.accept[reviewer][source]:
                return sources[:i]
        return sources

    return 1 + len(passed(draft(plan, 1), 0))


@pytest.mark.parametrize("text", ["2(2(3)+2)+1(4)+3", "1(1(1(", "0+2(5)"])
def test_a_simulation_of_three_drafters_agrees(text: str) -> None:
    if text.endswith("("):
        with pytest.raises(UsageError, match="spelled as in"):
            read_plan(text, 3)
        return
    plan, rng = read_plan(text, 3), np.random.default_rng(3)
    mean = np.mean([simulated(DEEP, plan, rng) for _ in range(20_000)])
    assert DEEP.tokens(plan) == pytest.approx(mean, abs=0.04)


def test_the_search_finds_the_best_of_two_drafters() -> None:
    tried = [(Stage(n, (Stage(k),)), Stage(m)) for n, k, m in product(range(9), range(13), range(13))]
    assert FLAT.rate(choose(FLAT)) == pytest.approx(max(map(FLAT.rate, tried)))


def test_a_deep_plan_goes_both_ways_and_beats_the_shallow_ones() -> None:
    best = choose(DEEP)
    alone = max(DEEP.rate(read_plan(f"{n}", 3)) for n in range(9))
    assert DEEP.rate(best) > alone and DEEP.rate(best) > DEEP.rate(())
    assert any(stage.inner for stage in best)


def test_what_does_not_pay_is_not_planned() -> None:
    costly = Levels(((1.0, 0.3, 0.1), (1.0, 1.0, 0.1)), (lambda _: 1.0, lambda _: 0.9, lambda _: 0.5))
    assert choose(costly) == () and spelled_plan(()) == "0"


@pytest.mark.parametrize("text", ["3(5)+6", "2(3(5)+2)+1(4)+6", "4", "0+2"])
def test_a_plan_is_read_as_it_is_spelled(text: str) -> None:
    assert spelled_plan(read_plan(text, 3)) == text


@pytest.mark.parametrize("text", ["", "a", "3(", "3)5", "3(5))", "3++1", "1+1+1+1", "1(1(1(1)))"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="3\\(5\\)"):
        read_plan(text, 3)
