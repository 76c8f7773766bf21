"""Families of problems: sums in stories, bills, units, lists, dates. Every line has several free places.

How a line begins, how its step is put and what follows the result are worded freely in the voice that the question
asks for; the order of operands is part of the wording, so that a digit may be right and yet unexpected. Every solution
ends with a line "Answer: ...". A family can also tell how a solution goes on from a wrong result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta

from .phrases import SEEN, VOICES, say
from .problem import Place, Problem, Retell, fixed, result

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Lena", "Max")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "tickets")
GOODS = ("pens", "cups", "lamps", "chairs", "shirts", "maps", "boxes", "plates", "balls", "bags")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
UNITS = (("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
         ("metres", "centimetres", 100), ("kilograms", "grams", 1000), ("feet", "inches", 12))  # fmt: skip


class Telling:
    """A solution as it is written in a voice. Results may be forced to be wrong, and what follows goes on from them."""

    def __init__(self, voice: str, wrong: Mapping[int, str]) -> None:
        self.voice, self.wrong = voice, wrong
        self.count = 0  # results so far
        self.lines: list[list[Place]] = []

    def line(self, kind: str, *parts: Place) -> None:
        """A line that begins as its kind does."""
        self.lines.append([say(self.voice, kind), *parts])

    def lead(self) -> str:
        return "next" if self.lines else "open"

    def free(self, kind: str, **values: object) -> Place:
        return say(self.voice, kind, **values)

    def text(self, right: object, *errors: object) -> tuple[str, Place]:
        """A result: what is said to be one, and its place."""
        said = self.wrong.get(self.count, str(right))
        self.count += 1
        return said, result(said, *errors)

    def number(self, right: int, *errors: int) -> tuple[int, Place]:
        said, place = self.text(right, *(slip for slip in errors if slip >= 0))
        return int(said), place

    def step(self, kind: str, a: int, b: int, topic: Sequence[Place] = ()) -> int:
        """A line of arithmetic; returns its result as said."""
        value, place = self.number(*ARITHMETIC[kind](a, b))
        self.line(self.lead(), *topic, self.free(kind, a=a, b=b), place, self.free("tail"))
        return value

    def close(self, place: Place, unit: str, answer: object) -> tuple[Place, ...]:
        """The line before the last, and the last; the whole solution."""
        self.line("last", self.free("closing"), place, fixed(unit))
        return lines(*self.lines, ending(answer))


def added(a: int, b: int) -> tuple[int, ...]:
    """a + b and its errors: a carry that is forgotten, or one too many; one off; the digits turned."""
    value, carry = a + b, a % 10 + b % 10 > 9
    return value, value + (-10 if carry else 10), value + (10 if carry else -10), value + 1, value - 1


def taken(a: int, b: int) -> tuple[int, ...]:
    value, borrow = a - b, a % 10 < b % 10
    return (
        value,
        value + (10 if borrow or value < 10 else -10),
        abs(value + (-10 if borrow else 10)),
        value + 1,
        value - 1,
    )


def multiplied(a: int, b: int) -> tuple[int, ...]:
    """a b: the carry of the ones is forgotten, once too few, once too many."""
    value, carry = a * b, a * (b % 10) // 10 * 10
    return value, value - carry if carry else value + 10, value + 10, value - b, value + b, value - 10


ARITHMETIC: dict[str, Callable[[int, int], tuple[int, ...]]] = {"plus": added, "minus": taken, "times": multiplied}


def lines(*parts: list[Place]) -> tuple[Place, ...]:
    """Lines of places, each closed by a full stop, and by a line break unless it is the last."""
    found: list[Place] = []
    for i, part in enumerate(parts):
        found += [*part, fixed(".\n" if i + 1 < len(parts) else ".")]
    return tuple(found)


def ending(answer: object) -> list[Place]:
    return [fixed("Answer: "), result(answer)]


def misread(row: Sequence[str]) -> tuple[str, str]:
    """Slips of a list: its second number is ten too many; the first two have changed places."""
    return ", ".join([row[0], str(int(row[1]) + 10), *row[2:]]), ", ".join([row[1], row[0], *row[2:]])


def made(
    family: str, question: str, voice: str, answer: object, retell: Callable[[Telling], tuple[Place, ...]]
) -> Problem:
    """The problem whose solutions `retell` tells."""

    def places(wrong: Mapping[int, str]) -> tuple[Place, ...]:
        return retell(Telling(voice, wrong))

    again: Retell = places
    return Problem(family, f"{question} Answer as a {voice}.", places({}), str(answer), again)


def sums(chance: random.Random, voice: str) -> Problem:
    """A story of what somebody gets and gives away."""
    who, what, begin = chance.choice(NAMES), chance.choice(THINGS), chance.randrange(8, 50)
    story, steps, total = [f"{who} has {begin} {what}."], [], begin
    for _ in range(chance.randrange(3, 6)):
        if chance.random() < 0.5 or total < 12:
            n = chance.randrange(3, 30)
            steps.append(("plus", n))
            story.append(chance.choice((f"{who} buys {n} more.", f"A friend brings {n} more.")))
            total += n
        else:
            n = chance.randrange(3, min(total - 1, 30))
            steps.append(("minus", n))
            story.append(chance.choice((f"{who} gives away {n}.", f"{n} of them get lost.")))
            total -= n

    def solution(telling: Telling) -> tuple[Place, ...]:
        value = begin
        for kind, n in steps:
            value = telling.step(kind, value, n)
        value, place = telling.number(value)
        return telling.close(place, f" {what}", value)

    return made("sums", " ".join([*story, f"How many {what} does {who} have?"]), voice, total, solution)


def bills(chance: random.Random, voice: str) -> Problem:
    """What several goods cost together."""
    goods = chance.sample(GOODS, chance.randrange(2, 4))
    counts = [chance.randrange(2, 7) for _ in goods]
    prices = [chance.randrange(11, 30) for _ in goods]

    def solution(telling: Telling) -> tuple[Place, ...]:
        costs = [
            telling.step("times", n, price, [telling.free("topic", what=what)])
            for what, n, price in zip(goods, counts, prices, strict=True)
        ]
        total = costs[0]
        for cost in costs[1:]:
            total = telling.step("plus", total, cost)
        total, place = telling.number(total)
        return telling.close(place, " coins", total)

    bought = ", ".join(
        f"{n} {what} at {price} coins each" for n, what, price in zip(counts, goods, prices, strict=True)
    )
    answer = sum(n * price for n, price in zip(counts, prices, strict=True))
    return made("bills", f"We buy {bought}. What do we pay?", voice, answer, solution)


def units(chance: random.Random, voice: str) -> Problem:
    """So many of a large unit and some of a small one."""
    large, small, per = chance.choice(UNITS)
    n, extra = chance.randrange(2, 13), chance.randrange(1, per)

    def solution(telling: Telling) -> tuple[Place, ...]:
        telling.line("open", telling.free("fact", large=large, small=small, per=per), telling.free("tail"))
        value = telling.step("plus", telling.step("times", n, per), extra)
        value, place = telling.number(value)
        return telling.close(place, f" {small}", value)

    question = f"How many {small} are {n} {large} and {extra} {small}?"
    return made("units", question, voice, n * per + extra, solution)


def lists(chance: random.Random, voice: str) -> Problem:
    """A list of numbers that is sorted, shortened and added up one by one."""
    numbers = chance.sample(range(1, 60), chance.randrange(4, 6))
    order = [str(n) for n in sorted(numbers)]

    def solution(telling: Telling) -> tuple[Place, ...]:
        said, place = telling.text(", ".join(order), *misread(order))
        telling.line("open", telling.free("sort"), place, telling.free("tail"))
        kept = said.split(", ")[1:]
        said, place = telling.text(", ".join(kept), *misread(kept))
        telling.line("next", telling.free("drop"), place, telling.free("tail"))
        first, *rest = map(int, said.split(", "))
        for n in rest:
            first = telling.step("plus", first, n)
        first, place = telling.number(first)
        return telling.close(place, " together", first)

    question = f"Take the numbers {', '.join(map(str, numbers))}. Sort them, drop the smallest, and add up the rest."
    return made("lists", question, voice, sum(numbers) - min(numbers), solution)


def dates(chance: random.Random, voice: str) -> Problem:
    """A date so many days later, over the ends of months."""
    begin = date(2025, 1, 1) + timedelta(chance.randrange(365))
    days = chance.randrange(15, 45)
    end = begin + timedelta(days)

    def solution(telling: Telling) -> tuple[Place, ...]:
        here, month = begin, MONTHS[begin.month - 1]
        exact = days_of(here) - here.day
        left, place = telling.number(exact, exact + 1, abs(exact - 1), exact + 10)
        telling.line("open", telling.free("left", day=here.day, month=month), place, fixed(" days"))
        rest, day = days, here.day + days
        for _ in range(2):  # a wrong number of days must not lead around the year
            if rest <= left:
                break
            day = rest = telling.step("minus", rest, left)
            here = (here.replace(day=1) + timedelta(32)).replace(day=1)
            left = days_of(here)
        if here == begin:
            day = telling.step("plus", here.day, days)
        name, after = MONTHS[here.month - 1], MONTHS[here.month % 12]
        said, place = telling.text(f"{name} {day}", f"{after} {day}")
        return telling.close(place, "", said)

    question = f"Which date is {days} days after {MONTHS[begin.month - 1]} {begin.day}?"
    return made("dates", question, voice, f"{MONTHS[end.month - 1]} {end.day}", solution)


def days_of(month: date) -> int:
    return ((month.replace(day=1) + timedelta(32)).replace(day=1) - timedelta(1)).day


FAMILIES: dict[str, Callable[[random.Random, str], Problem]] = {
    "sums": sums,
    "bills": bills,
    "units": units,
    "lists": lists,
    "dates": dates,
}


def draw(
    count: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES), voices: tuple[str, ...] = SEEN
) -> list[Problem]:
    """Fresh problems, the families in turns, each in a voice drawn at random."""
    return drawn(count, random.Random(seed), families, voices)


def drawn(
    count: int, chance: random.Random, families: tuple[str, ...] = tuple(FAMILIES), voices: tuple[str, ...] = VOICES
) -> list[Problem]:
    """The next problems of a run of chance."""
    return [FAMILIES[families[i % len(families)]](chance, chance.choice(voices)) for i in range(count)]
