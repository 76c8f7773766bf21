"""Program-checked problems: what is right passes in every wording, what is wrong is found at its first letter."""

from __future__ import annotations

import random
import re

import pytest

from foredraft.judge.problems.families import FAMILIES, UNITS, draw
from foredraft.judge.problems.phrases import PHRASES, SEEN, UNSEEN, VOICES, favourite
from foredraft.judge.problems.problem import DRAFTER, MEND, TARGET, Problem, fixed, result, wording

TOY = Problem("toy", "?", (wording(("A ", "An ", "A b ")), result(12, 13), fixed(".")), "12")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("style", [0, 1])
def test_every_wording_of_every_problem_is_right(family: str, style: int) -> None:
    chance = random.Random(style)
    texts = set()
    for problem in draw(60, 7, (family,), VOICES):
        for share in (1.0, 0.5):
            text = problem.write(chance, style, share)
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


def test_target_and_drafter_like_different_words() -> None:
    problem = draw(1, 3)[0]
    chance = random.Random(0)
    own = problem.write(chance, TARGET)
    assert own == problem.write(chance, TARGET) != problem.write(chance, DRAFTER)
    free = [place for place in problem.places if place.free]
    assert all(place.favourite(DRAFTER) != place.favourite(TARGET) for place in free)
    chosen = [free[0].choose(chance, TARGET, 0.8) for _ in range(2000)]
    assert 1500 < chosen.count(0) < 1700 and chosen.count(1) > chosen.count(2) > chosen.count(3) > 20


def test_evaluation_words_nothing_as_labels_do() -> None:
    """No phrase of the unseen voice stands in any other; and within a place no phrase begins another."""
    for kind, voices in PHRASES.items():
        assert set(voices) == set(VOICES)
        for voice, phrases in voices.items():
            assert len(set(phrases)) == len(phrases) == 4 and 0 < favourite(kind, voice) < 4
            assert not any(a != b and b.startswith(a) for a in phrases for b in phrases)
        seen = {phrase for voice in SEEN for phrase in voices[voice]}
        assert not seen & {phrase for voice in UNSEEN for phrase in voices[voice]}
    assert all(problem.question.endswith("as a sailor.") for problem in draw(10, 1, voices=UNSEEN))
    assert not any(problem.question.endswith("as a sailor.") for problem in draw(50, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_result_is_followed_as_if_it_were_right(family: str) -> None:
    """The text goes on from it; most of the time the answer is then another."""
    other = 0
    for problem in draw(40, 29, (family,)):
        assert problem.retell is not None and problem.retell({}) == problem.places
        results = [place for place in problem.places if place.is_result]
        number = next(i for i, place in enumerate(results) if place.errors)
        said = results[number].errors[0]
        places = problem.retell({number: said})
        again = [place for place in places if place.is_result]
        assert again[number].phrases == (said,) and again[:number] == results[:number]
        text = "".join(place.phrases[0] for place in places)
        assert not problem.check(text).whole
        other += not problem.solved(text)
    assert other >= 20


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


@pytest.mark.parametrize("family", FAMILIES)
def test_wording_is_free_again_and_again(family: str) -> None:
    """Two free places or more in every line but the last: without a judge the target stops a draft at each of them."""
    for problem in draw(20, 17, (family,)):
        lines = [0]
        for place in problem.places:
            lines[-1] += place.free
            if place.phrases == (".\n",):
                lines.append(0)
        assert lines[-1] == 0 and all(count >= 2 for count in lines[:-1])


def test_bills_units_and_lists_are_computed_right() -> None:
    """Worked out again from the numbers of the question alone."""
    for problem in draw(90, 19, ("bills", "units", "lists")):
        numbers = [int(n) for n in re.findall(r"\d+", problem.question)]
        if problem.family == "bills":
            assert int(problem.answer) == sum(n * price for n, price in zip(numbers[::2], numbers[1::2], strict=True))
        elif problem.family == "lists":
            assert int(problem.answer) == sum(numbers) - min(numbers)
        else:
            large = problem.question.split()[5]
            per = next(per for name, _, per in UNITS if name == large)
            assert int(problem.answer) == numbers[0] * per + numbers[1]
