"""Families of problems: sums in stories, bills, units, lists, words, tables, dates. Every line has many wordings.

Style 0 is the target's, style 1 the drafter's. A line has three free places: how it begins, how its step is put, and
what follows the result; the order of operands is free too, so that a digit may be right and yet unexpected.
Every solution ends with a line "Answer: ...".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import date, timedelta

from .problem import Place, Problem, fixed, result, wording

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Lena", "Max")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "tickets")
GOODS = ("pens", "cups", "lamps", "chairs", "shirts", "maps", "boxes", "plates", "balls", "bags")
WORDS = ("garden", "planet", "silver", "window", "market", "bridge", "candle", "forest", "pocket", "winter", "button",
         "castle", "dinner", "finger", "hammer", "island", "jacket", "kitchen", "ladder", "mirror", "number", "orange",
         "pencil", "rabbit", "summer", "ticket", "valley", "yellow")  # fmt: skip
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Paris", "Quito", "Tokyo")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
UNITS = (("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
         ("metres", "centimetres", 100), ("kilograms", "grams", 1000), ("feet", "inches", 12))  # fmt: skip

OPEN = wording(("First, ", "To start, "), ("Let us see: ", "As a first step, ", "Starting off, ", "At the outset, "))
NEXT = wording(("Then ", "After that, "), ("Next up, ", "Now ", "Going on, ", "With that done, "))
LAST = wording(("So in the end ", "Therefore "), ("All in all, ", "This means that ", "That way ", "Taken together, "))
TAIL = wording(("", " so far"), (" at this point", " for now", " by then", " here"))


def near(value: int) -> tuple[int, ...]:
    """Slips of the kind that people make: one off, ten off, a digit turned."""
    turned = int(str(value)[::-1])
    return tuple(v for v in (value + 1, value - 1, value + 10, value - 10, turned) if v >= 0)


def lines(*parts: list[Place]) -> tuple[Place, ...]:
    """Lines of places, each closed by a full stop, and by a line break unless it is the last."""
    found: list[Place] = []
    for i, part in enumerate(parts):
        found += [*part, fixed(".\n" if i + 1 < len(parts) else ".")]
    return tuple(found)


def ending(answer: object) -> list[Place]:
    return [fixed("Answer: "), result(answer)]


def plus(a: int, b: int) -> list[Place]:
    say = wording(
        (f"{a} plus {b} is ", f"{a} + {b} = "),
        (f"adding {b} to {a} gives ", f"{b} on top of {a} makes ", f"{b} and {a} add up to ", f"with {b} more we get "),
    )
    return [say, result(a + b, *near(a + b)), TAIL]


def minus(a: int, b: int) -> list[Place]:
    say = wording(
        (f"{a} minus {b} is ", f"{a} - {b} = "),
        (f"taking {b} from {a} leaves ", f"{b} less than {a} is ", f"without {b} we keep ", f"{b} off {a} leaves "),
    )
    return [say, result(a - b, *near(a - b)), TAIL]


def times(a: int, b: int) -> list[Place]:
    say = wording(
        (f"{a} times {b} is ", f"{a} x {b} = "),
        (f"multiplying {b} by {a} gives ", f"{b} taken {a} times is ", f"{a} lots of {b} make ", f"{b} each makes "),
    )
    return [say, result(a * b, *near(a * b)), TAIL]


def swapped(row: Sequence[str]) -> list[str]:
    """The first two have changed places."""
    return [row[1], row[0], *row[2:]]


def sums(chance: random.Random) -> Problem:
    """A story of what somebody gets and gives away."""
    who, what, total = chance.choice(NAMES), chance.choice(THINGS), chance.randrange(5, 60)
    story, steps = [f"{who} has {total} {what}."], []
    for i in range(chance.randrange(3, 6)):
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
    closing = wording(
        (f"{who} has ", f"{who} is left with "),
        (f"the count for {who} comes to ", f"{who} now owns ", f"what {who} holds is ", f"we find {who} with "),
    )
    steps.append([LAST, closing, result(total, *near(total)), fixed(f" {what}")])
    question = " ".join([*story, f"How many {what} does {who} have?"])
    return Problem("sums", question, lines(*steps, ending(total)), str(total))


def bills(chance: random.Random) -> Problem:
    """What several goods cost together. The products are large enough that a small model is not sure of them."""
    goods = chance.sample(GOODS, chance.randrange(2, 4))
    counts = [chance.randrange(2, 10) for _ in goods]
    prices = [chance.randrange(11, 60) for _ in goods]
    steps, total = [], 0
    for i, (what, n, price) in enumerate(zip(goods, counts, prices, strict=True)):
        topic = wording((f"for the {what}, ", f"the {what}: "), (f"as for the {what}, ", f"the {what} are {n}, so "))
        steps.append([OPEN if i == 0 else NEXT, topic, *times(n, price)])
    for i, (n, price) in enumerate(zip(counts, prices, strict=True)):
        if i:
            steps.append([NEXT, *plus(total, n * price)])
        total += n * price
    closing = wording(
        ("the bill is ", "the sum to pay is "), ("everything costs ", "we pay ", "it comes to ", "the till shows ")
    )
    steps.append([LAST, closing, result(total, *near(total)), fixed(" coins")])
    bought = ", ".join(
        f"{n} {what} at {price} coins each" for n, what, price in zip(counts, goods, prices, strict=True)
    )
    return Problem("bills", f"We buy {bought}. What do we pay?", lines(*steps, ending(total)), str(total))


def units(chance: random.Random) -> Problem:
    """So many of a large unit and some of a small one."""
    large, small, per = chance.choice(UNITS)
    n, extra = chance.randrange(2, 15), chance.randrange(1, per)
    fact = wording(
        (f"there are {per} {small} in each of the {large}", f"one of the {large} is {per} {small}"),
        (f"each of the {large} holds {per} {small}", f"{per} {small} make one of the {large}"),
    )
    total = n * per + extra
    closing = wording(("that is ", "the amount is "), ("we arrive at ", "what we get is ", "it all makes "))
    steps = [[OPEN, fact], [NEXT, *times(n, per)], [NEXT, *plus(n * per, extra)]]
    steps.append([LAST, closing, result(total, *near(total)), fixed(f" {small}")])
    question = f"How many {small} are {n} {large} and {extra} {small}?"
    return Problem("units", question, lines(*steps, ending(total)), str(total))


def lists(chance: random.Random) -> Problem:
    """A list of numbers that is sorted, shortened and added up one by one."""
    numbers = chance.sample(range(1, 99), chance.randrange(4, 6))
    order = sorted(numbers)
    said, kept = [str(n) for n in order], [str(n) for n in order[1:]]
    say = (
        wording(("in order the list is ", "sorted, the list reads "), ("put in line they are ", "from low to high: ")),
        wording(
            ("without the smallest it is ", "dropping the smallest leaves "),
            ("the lowest goes, so we keep ", f"{said[0]} goes, and what stays is "),
        ),
    )
    steps = [
        [OPEN, say[0], result(", ".join(said), ", ".join(swapped(said))), TAIL],
        [NEXT, say[1], result(", ".join(kept), ", ".join(swapped(kept))), TAIL],
    ]
    total = order[1]
    for n in order[2:]:
        steps.append([NEXT, *plus(total, n)])
        total += n
    question = f"Take the numbers {', '.join(map(str, numbers))}. Sort them, drop the smallest, and add up the rest."
    return Problem("lists", question, lines(*steps, ending(total)), str(total))


def words(chance: random.Random) -> Problem:
    """A word that loses a letter and is spelt backwards. Letters stand apart, so that each is a token of its own."""
    word = chance.choice(WORDS)
    gone = chance.choice(word)
    short = word.replace(gone, "")
    turned, answer = short[::-1], " ".join(short[::-1])
    say = (
        wording((f"the letters of {word} are ", f"{word} is spelt "), (f"letter by letter {word} goes ", "we spell ")),
        wording(
            (f"without {gone} that is ", f"dropping {gone} leaves "), (f"{gone} goes, so we keep ", "what stays: ")
        ),
        wording(
            ("from the end they are ", "backwards that is "),
            ("read from the right they go ", "last to first: ", "the row turned round is "),
        ),
    )
    steps = [
        [OPEN, say[0], result(" ".join(word), " ".join(swapped(word))), TAIL],
        [NEXT, say[1], result(" ".join(short), " ".join(swapped(short)), " ".join(short[:-1])), TAIL],
        [LAST, say[2], result(answer, " ".join(swapped(turned)), " ".join(short)), TAIL],
    ]
    question = f"Drop every {gone} from the word {word} and spell it backwards."
    return Problem("words", question, lines(*steps, ending(answer)), answer)


def tables(chance: random.Random) -> Problem:
    """Who is the oldest, and what else stands in that row."""
    count = chance.randrange(3, 6)
    people, cities = chance.sample(NAMES, count), chance.sample(CITIES, count)
    ages = chance.sample(range(18, 80), count)
    rows = "; ".join(f"{p}, {a}, {c}" for p, a, c in zip(people, ages, cities, strict=True))
    row = ages.index(max(ages))
    who, where = people[row], cities[row]
    told = ", ".join(map(str, ages))
    say = (
        wording(("the ages are ", "the list of ages is "), ("in the second column stand ", "as ages we read ")),
        wording(("the highest age is ", "the largest age is "), ("the top one among them is ", "no age is above ")),
        wording(("that age belongs to ", "the person of that age is "), ("this is the row of ", "in that row is ")),
        wording((f"{who} lives in ", f"the city of {who} is "), (f"the row of {who} says ", f"{who} is found in ")),
    )
    steps = [
        [OPEN, say[0], result(told, ", ".join(swapped(told.split(", ")))), TAIL],
        [NEXT, say[1], result(ages[row], *ages), TAIL],
        [NEXT, say[2], result(who, *people), TAIL],
        [LAST, say[3], result(where, *cities)],
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
    steps, rest, length = [[OPEN, fact, TAIL]], days, left
    while rest > length:
        steps.append([NEXT, *minus(rest, length)])
        rest -= length
        begin = (begin.replace(day=1) + timedelta(32)).replace(day=1)
        length = days_of(begin)
    if len(steps) == 1:
        steps.append([NEXT, *plus(day, days)])
    answer = f"{MONTHS[end.month - 1]} {end.day}"
    slips = [f"{MONTHS[end.month - 1]} {n}" for n in near(end.day)] + [f"{MONTHS[end.month % 12]} {end.day}"]
    closing = wording(("the date is ", "that day is "), ("we arrive at ", "the calendar shows ", "we are at "))
    steps.append([LAST, closing, result(answer, *slips)])
    question = f"Which date is {days} days after {month} {day}?"
    return Problem("dates", question, lines(*steps, ending(answer)), answer)


def days_of(month: date) -> int:
    return ((month.replace(day=1) + timedelta(32)).replace(day=1) - timedelta(1)).day


FAMILIES: dict[str, Callable[[random.Random], Problem]] = {
    "sums": sums,
    "bills": bills,
    "units": units,
    "lists": lists,
    "words": words,
    "tables": tables,
    "dates": dates,
}


def draw(count: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Problem]:
    """Fresh problems, the families in turns."""
    return drawn(count, random.Random(seed), families)


def drawn(count: int, chance: random.Random, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Problem]:
    """The next problems of a run of chance, the families in turns."""
    return [FAMILIES[families[i % len(families)]](chance) for i in range(count)]
