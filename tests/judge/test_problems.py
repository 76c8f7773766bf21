"""Program-checked problems: what is right passes in every wording, what is wrong is found at its first letter."""

from __future__ import annotations

import random

import pytest

from foredraft.judge.families import FAMILIES, draw
from foredraft.judge.problem import MEND, Problem, fixed, result, wording

TOY = Problem("toy", "?", (wording(("A ",), ("An ", "A b ")), result(12, 13), fixed(".")), "12")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("style", [0, 1])
def test_every_wording_of_every_problem_is_right(family: str, style: int) -> None:
    chance = random.Random(style)
    texts = set()
    for problem in draw(60, 7, (family,)):
        for other in (0.0, 0.5):
            text = problem.write(chance, style, other)
            check = problem.check(text)
            assert check.whole and check.right == len(text), text
            assert problem.solved(text) and problem.answer in text
            texts.add(text)
            for cut in (0, 3, len(text) // 2):
                begun = problem.check(text[:cut])
                assert begun.begun and not begun.whole and begun.right == cut
    assert len(texts) > 100


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slip_is_found_at_its_first_wrong_letter(family: str) -> None:
    chance, found = random.Random(5), 0
    for problem in draw(40, 11, (family,)):
        text = problem.write(chance, 0, slip=1.0)
        check = problem.check(text)
        assert not check.whole and MEND in text
        found += 1
        assert not problem.check(text[: check.right + 1]).begun and problem.check(text[: check.right]).begun
        assert check.right < text.index(MEND) + len(MEND)
    assert found == 40


def test_styles_differ_and_mix() -> None:
    problem = draw(1, 3)[0]
    chance = random.Random(0)
    pure = {problem.write(chance, 0) for _ in range(50)}
    other = {problem.write(chance, 1) for _ in range(50)}
    assert not pure & other and len(pure) > 4


def test_the_checker_follows_all_readings() -> None:
    assert TOY.check("A 12.").whole and TOY.check("An 12.").whole and TOY.check("A b 12.").whole
    assert TOY.check("A 13.").right == 3  # the second digit
    assert TOY.check("A c").right == 2 and TOY.check("A b").begun
    assert TOY.check("A 12. And more").right == 5 and not TOY.check("A 12. And more").begun
    assert not TOY.check("").whole and TOY.check("").begun


def test_dates_are_the_calendars() -> None:
    from datetime import datetime, timedelta

    for problem in draw(200, 13, ("dates",)):
        parts = problem.question.split()
        days, begin = int(parts[3]), datetime.strptime(" ".join(parts[6:8]).rstrip("?") + " 2025", "%B %d %Y")
        end = begin + timedelta(days)
        assert problem.answer == f"{end:%B} {end.day}"


def test_the_same_seed_draws_the_same_problems() -> None:
    assert draw(12, 4) == draw(12, 4) != draw(12, 5)
    assert {p.family for p in draw(12, 4)} == set(FAMILIES)
