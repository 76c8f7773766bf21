"""Families of problems: sums in stories, units, lists, words, tables, dates. Each line of a solution is worded anew.

Style 0 is the target's, style 1 the drafter's. Every solution ends with a line "Answer: ...".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import date, timedelta

from .problem import Place, Problem, fixed, result, wording

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Lena", "Max")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "tickets")
WORDS = ("garden", "planet", "silver", "window", "market", "bridge", "candle", "forest", "pocket", "winter", "button")
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Paris", "Quito", "Tokyo")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
UNITS = (("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
         ("metres", "centimetres", 100), ("kilograms", "grams", 1000), ("feet", "inches", 12))  # fmt: skip

OPEN = wording(("First, ", "To start, "), ("Let us see: ", "Beginning with this, "))
NEXT = wording(("Then ", "After that, "), ("Next up, ", "Moving on, "))
LAST = wording(("So in the end ", "Therefore "), ("All in all, ", "This means that "))


def near(value: int) -> tuple[int, ...]:
    """Slips of the kind that people make: one off, ten off, a digit turned."""
    turned = int(str(value)[::-1])
    return tuple(v for v in (value + 1, value - 1, value + 10, value - 10, turned) if v >= 0)


def lines(*parts: list[Place]) -> tuple[Place, ...]:
    """Lines of places, each closed by a full stop and a line break but the last."""
    found: list[Place] = []
    for i, part in enumerate(parts):
        found += [*part, fixed(".\n" if i + 1 < len(parts) else ".")]
    return tuple(found)


def ending(answer: object) -> list[Place]:
    return [fixed("Answer: "), result(answer)]


def plus(a: int, b: int) -> list[Place]:
    say = wording((f"{a} plus {b} is ", f"{a} + {b} = "), (f"adding {b} to {a} gives ", f"{b} on top of {a} makes "))
    return [say, result(a + b, *near(a + b))]


def minus(a: int, b: int) -> list[Place]:
    say = wording((f"{a} minus {b} is ", f"{a} - {b} = "), (f"taking {b} from {a} leaves ", f"{a} without {b} makes "))
    return [say, result(a - b, *near(a - b))]


def times(a: int, b: int) -> list[Place]:
    say = wording((f"{a} times {b} is ", f"{a} x {b} = "), (f"multiplying {b} by {a} gives ", f"{a} lots of {b} make "))
    return [say, result(a * b, *near(a * b))]


def swapped(row: Sequence[str]) -> list[str]:
    """The first two have changed places."""
    return [row[1], row[0], *row[2:]]


def sums(chance: random.Random) -> Problem:
    """A story of what somebody gets and gives away."""
    who, what, total = chance.choice(NAMES), chance.choice(THINGS), chance.randrange(5, 60)
    story, steps = [f"{who} has {total} {what}."], []
    for i in range(chance.randrange(2, 5)):
        lead = OPEN if i == 0 else NEXT
        if chance.random() < 0.5 or total < 6:
            n = chance.randrange(2, 40)
            steps.append([lead, *plus(total, n)])
            story.append(chance.choice((f"{who} buys {n} more.", f"A friend brings {n} more.")))
            total += n
        else:
            n = chance.randrange(2, total - 1)
            steps.append([lead, *minus(total, n)])
            story.append(chance.choice((f"{who} gives away {n}.", f"{n} of them get lost.")))
            total -= n
    closing = wording((f"{who} has ", f"{who} is left with "), (f"the count for {who} comes to ", f"{who} now owns "))
    steps.append([LAST, closing, result(total, *near(total)), fixed(f" {what}")])
    question = " ".join([*story, f"How many {what} does {who} have?"])
    return Problem("sums", question, lines(*steps, ending(total)), str(total))


def units(chance: random.Random) -> Problem:
    """So many of a large unit and some of a small one."""
    large, small, per = chance.choice(UNITS)
    n, extra = chance.randrange(2, 15), chance.randrange(1, per)
    fact = wording(
        (f"there are {per} {small} in each of the {large}", f"one of the {large} is {per} {small}"),
        (f"each of the {large} holds {per} {small}", f"{per} {small} make one of the {large}"),
    )
    total = n * per + extra
    steps = [[OPEN, fact], [NEXT, *times(n, per)], [NEXT, *plus(n * per, extra)]]
    question = f"How many {small} are {n} {large} and {extra} {small}?"
    return Problem("units", question, lines(*steps, ending(total)), str(total))


def lists(chance: random.Random) -> Problem:
    """A list of numbers that is sorted, shortened and added up."""
    numbers = chance.sample(range(1, 99), chance.randrange(4, 7))
    order = [str(n) for n in sorted(numbers)]
    total = sum(numbers) - min(numbers)
    say = (
        wording(("in order the list is ", "sorted, the list reads "), ("put in line they are ", "from low to high: ")),
        wording(("without the smallest it is ", "dropping the smallest leaves "), ("the lowest goes, so we keep ",)),
        wording(("the sum is ", "together they make "), ("adding them all up gives ", "their total comes to ")),
    )
    steps = [
        [OPEN, say[0], result(", ".join(order), ", ".join(swapped(order)))],
        [NEXT, say[1], result(", ".join(order[1:]), ", ".join(swapped(order[1:])))],
        [NEXT, say[2], result(total, *near(total))],
    ]
    question = f"Take the numbers {', '.join(map(str, numbers))}. Sort them, drop the smallest, and add up the rest."
    return Problem("lists", question, lines(*steps, ending(total)), str(total))


def words(chance: random.Random) -> Problem:
    """A word turned round and spelt."""
    word = chance.choice(WORDS)
    turned = word[::-1]
    say = (
        wording((f"the letters of {word} are ", f"{word} is spelt "), (f"letter by letter {word} goes ",)),
        wording(("from the end they are ", "backwards that is "), ("read from the right they go ",)),
        wording(("the word is ", "it reads "), ("we end up with ", "what comes out is ")),
    )
    steps = [
        [OPEN, say[0], result(" ".join(word), " ".join(swapped(word)))],
        [NEXT, say[1], result(" ".join(turned), " ".join(swapped(turned)))],
        [LAST, say[2], result(turned, "".join(swapped(turned)))],
    ]
    return Problem("words", f"Write the word {word} backwards.", lines(*steps, ending(turned)), turned)


def tables(chance: random.Random) -> Problem:
    """Who is the oldest, and what else stands in that row."""
    count = chance.randrange(3, 6)
    people, cities = chance.sample(NAMES, count), chance.sample(CITIES, count)
    ages = chance.sample(range(18, 80), count)
    rows = "; ".join(f"{p}, {a}, {c}" for p, a, c in zip(people, ages, cities, strict=True))
    row = ages.index(max(ages))
    who, where = people[row], cities[row]
    say = (
        wording(("the highest age is ", "the largest age is "), ("the top one among the ages is ", "no age is above ")),
        wording(("that age belongs to ", "the person of that age is "), ("this is the row of ", "in that row is ")),
        wording((f"{who} lives in ", f"the city of {who} is "), (f"the row of {who} says ", f"{who} is found in ")),
    )
    steps = [
        [OPEN, say[0], result(ages[row], *ages)],
        [NEXT, say[1], result(who, *people)],
        [NEXT, say[2], result(where, *cities)],
    ]
    question = f"Name, age, city: {rows}. In which city does the oldest person live?"
    return Problem("tables", question, lines(*steps, ending(where)), where)


def dates(chance: random.Random) -> Problem:
    """A date so many days later, over the ends of months."""
    begin = date(2025, 1, 1) + timedelta(chance.randrange(365))
    days = chance.randrange(15, 45)
    end, month, day = begin + timedelta(days), MONTHS[begin.month - 1], begin.day
    left = days_of(begin) - day
    fact = wording(
        (f"{month} has {left} days left after the {day}", f"after the {day} there are {left} days of {month} left"),
        (f"the {day} of {month} is followed by {left} more", f"{month} goes on for {left} days behind the {day}"),
    )
    steps, rest, length = [[OPEN, fact]], days, left
    while rest > length:
        steps.append([NEXT, *minus(rest, length)])
        rest -= length
        begin = (begin.replace(day=1) + timedelta(32)).replace(day=1)
        length = days_of(begin)
    answer = f"{MONTHS[end.month - 1]} {end.day}"
    slips = [f"{MONTHS[end.month - 1]} {n}" for n in near(end.day)] + [f"{MONTHS[end.month % 12]} {end.day}"]
    closing = wording(("the date is ", "that day is "), ("we arrive at ", "the calendar shows "))
    steps.append([LAST, closing, result(answer, *slips)])
    question = f"Which date is {days} days after {month} {day}?"
    return Problem("dates", question, lines(*steps, ending(answer)), answer)


def days_of(month: date) -> int:
    return ((month.replace(day=1) + timedelta(32)).replace(day=1) - timedelta(1)).day


FAMILIES: dict[str, Callable[[random.Random], Problem]] = {
    "sums": sums,
    "units": units,
    "lists": lists,
    "words": words,
    "tables": tables,
    "dates": dates,
}


def draw(count: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Problem]:
    """Fresh problems, the families in turns."""
    chance = random.Random(seed)
    return [FAMILIES[families[i % len(families)]](chance) for i in range(count)]
