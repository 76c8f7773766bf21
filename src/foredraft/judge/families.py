"""Families of problems: sums in stories, units, lists, words, tables, dates. Each line of a solution is worded anew.

Style 0 is the target's, style 1 the drafter's. Every solution ends with a line "Answer: ...".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta

from .problem import Place, Problem, fixed, result, wording

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Lena", "Max")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "tickets")
WORDS = ("garden", "planet", "silver", "window", "market", "bridge", "candle", "forest", "pocket", "winter", "button")
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Paris", "Quito", "Tokyo")
COLOURS = ("red", "blue", "green", "black", "white", "brown", "grey")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
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


def sums(chance: random.Random) -> Problem:
    """A story of what somebody gets and gives away."""
    who, what, total = chance.choice(NAMES), chance.choice(THINGS), chance.randrange(5, 60)
    story, steps = [f"{who} has {total} {what}."], []
    for i in range(chance.randrange(2, 5)):
        lead, before = (OPEN if i == 0 else NEXT), total
        if chance.random() < 0.5 or total < 6:
            n = chance.randrange(2, 40)
            total += n
            story.append(chance.choice((f"{who} buys {n} more.", f"A friend brings {n} more.")))
            say = wording((f"{before} plus {n} is ", f"{before} + {n} = "), (f"adding {n} to {before} gives ", f"{n} on top of {before} makes "))  # fmt: skip
        else:
            n = chance.randrange(2, total - 1)
            total -= n
            story.append(chance.choice((f"{who} gives away {n}.", f"{n} of them get lost.")))
            say = wording((f"{before} minus {n} is ", f"{before} - {n} = "), (f"taking {n} from {before} leaves ", f"{before} without {n} makes "))  # fmt: skip
        steps.append([lead, say, result(total, *near(total))])
    closing = wording((f"{who} has ", f"{who} is left with "), (f"the count for {who} comes to ", f"{who} now owns "))
    steps.append([LAST, closing, result(total, *near(total)), fixed(f" {what}")])
    return Problem("sums", " ".join([*story, f"How many {what} does {who} have?"]), lines(*steps, ending(total)), str(total))  # fmt: skip


def units(chance: random.Random) -> Problem:
    """So many of a large unit and some of a small one."""
    large, small, per = chance.choice(UNITS)
    n, extra = chance.randrange(2, 15), chance.randrange(1, per)
    whole, total = n * per, n * per + extra
    first = [OPEN, wording((f"there are {per} {small} in each of the {large}", f"one of the {large} is {per} {small}"), (f"each of the {large} holds {per} {small}", f"{per} {small} make one of the {large}"))]  # fmt: skip
    second = [NEXT, wording((f"{n} times {per} is ", f"{n} x {per} = "), (f"multiplying {per} by {n} gives ", f"{n} lots of {per} make ")), result(whole, *near(whole))]  # fmt: skip
    third = [NEXT, wording((f"{whole} plus {extra} is ", f"{whole} + {extra} = "), (f"adding {extra} to {whole} gives ", f"{extra} on top of {whole} makes ")), result(total, *near(total))]  # fmt: skip
    question = f"How many {small} are {n} {large} and {extra} {small}?"
    return Problem("units", question, lines(first, second, third, ending(total)), str(total))


def lists(chance: random.Random) -> Problem:
    """A list of numbers that is sorted, shortened and counted."""
    numbers = chance.sample(range(1, 99), chance.randrange(4, 7))
    order = sorted(numbers)
    rest = order[1:]
    text = ", ".join(map(str, rest))
    wrong = ", ".join(map(str, [rest[1], rest[0], *rest[2:]]))
    first = [OPEN, wording(("in order the list is ", "sorted, the list reads "), ("putting them in line gives ", "from low to high they are ")), result(", ".join(map(str, order)), ", ".join(map(str, [order[1], order[0], *order[2:]])))]  # fmt: skip
    second = [NEXT, wording(("without the smallest it is ", "dropping the smallest leaves "), ("the lowest one goes, so we keep ", "once the least is out we have ")), result(text, wrong)]  # fmt: skip
    third = [NEXT, wording(("the sum is ", "together they make "), ("adding them all up gives ", "their total comes to ")), result(sum(rest), *near(sum(rest)))]  # fmt: skip
    question = f"Take the numbers {', '.join(map(str, numbers))}. Sort them, drop the smallest, and add up the rest."
    return Problem("lists", question, lines(first, second, third, ending(sum(rest))), str(sum(rest)))


def words(chance: random.Random) -> Problem:
    """A word turned round and spelt."""
    word = chance.choice(WORDS)
    spelt, turned = " ".join(word), word[::-1]
    swapped = turned[1] + turned[0] + turned[2:]
    first = [OPEN, wording((f"the letters of {word} are ", f"{word} is spelt "), (f"letter by letter {word} goes ", f"we can write {word} as ")), result(spelt, " ".join(word[1] + word[0] + word[2:]))]  # fmt: skip
    second = [NEXT, wording(("from the end they are ", "backwards that is "), ("read from the right they go ", "turning the row gives ")), result(" ".join(turned), " ".join(swapped))]  # fmt: skip
    third = [
        LAST,
        wording(("the word is ", "it reads "), ("we end up with ", "what comes out is ")),
        result(turned, swapped),
    ]
    return Problem("words", f"Write the word {word} backwards.", lines(first, second, third, ending(turned)), turned)


def tables(chance: random.Random) -> Problem:
    """Who has something, and what else stands in that row."""
    count = chance.randrange(3, 6)
    people, cities = chance.sample(NAMES, count), chance.sample(CITIES, count)
    ages = chance.sample(range(18, 80), count)
    colours = [chance.choice(COLOURS) for _ in range(count)]
    rows = "; ".join(f"{p}, {a}, {c}, {k}" for p, a, c, k in zip(people, ages, cities, colours, strict=True))
    oldest = max(range(count), key=lambda i: ages[i])
    other = [p for p in people if p != people[oldest]]
    first = [OPEN, wording(("the highest age is ", "the largest age is "), ("looking at ages, the top one is ", "no age is above ")), result(ages[oldest], *ages)]  # fmt: skip
    second = [NEXT, wording(("that age belongs to ", "the person of that age is "), ("this is the row of ", "in that row we find ")), result(people[oldest], *other)]  # fmt: skip
    third = [NEXT, wording((f"{people[oldest]} lives in ", f"the city of {people[oldest]} is "), (f"for {people[oldest]} the table has ", f"the row of {people[oldest]} says ")), result(cities[oldest], *cities)]  # fmt: skip
    question = f"Name, age, city, colour: {rows}. In which city does the oldest person live?"
    return Problem("tables", question, lines(first, second, third, ending(cities[oldest])), cities[oldest])


def dates(chance: random.Random) -> Problem:
    """A date so many days later, over the end of a month."""
    begin = date(2025, 1, 1) + timedelta(chance.randrange(365))
    days = chance.randrange(15, 45)
    end = begin + timedelta(days)
    month = MONTHS[begin.month - 1]
    last = (date(begin.year + begin.month // 12, begin.month % 12 + 1, 1) - timedelta(1)).day
    left = last - begin.day
    steps = [[OPEN, wording((f"{month} has {last} days, so {left} are left after the {begin.day}", f"after the {begin.day} there are {left} of the {last} days of {month} left"), (f"with {last} days in {month}, the {begin.day} is followed by {left} more", f"{month} goes on for {left} days behind the {begin.day}, up to {last}"))]]  # fmt: skip
    if days > left:
        rest = days - left
        steps.append([NEXT, wording((f"{days} minus {left} is ", f"{days} - {left} = "), (f"taking {left} from {days} leaves ", f"{days} without {left} makes ")), result(rest, *near(rest))])  # fmt: skip
        following = begin.replace(day=1) + timedelta(32)
        length = (following.replace(day=1) + timedelta(32)).replace(day=1) - timedelta(1)
        if rest > length.day:
            over = rest - length.day
            steps.append([NEXT, wording((f"{rest} minus {length.day} is ", f"{rest} - {length.day} = "), (f"taking {length.day} from {rest} leaves ", f"{rest} without {length.day} makes ")), result(over, *near(over))])  # fmt: skip
    answer = f"{MONTHS[end.month - 1]} {end.day}"
    slips = [f"{MONTHS[end.month - 1]} {n}" for n in near(end.day)] + [f"{MONTHS[end.month % 12]} {end.day}"]
    steps.append([LAST, wording(("the date is ", "that day is "), ("we arrive at ", "the calendar shows ")), result(answer, *slips)])  # fmt: skip
    question = f"Which date is {days} days after {month} {begin.day}?"
    return Problem("dates", question, lines(*steps, ending(answer)), answer)


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
