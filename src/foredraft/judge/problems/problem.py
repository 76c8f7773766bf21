"""Problems whose written solutions a program can check, character by character.

A solution is a row of places. Wherever wording is free, a place has several phrases, all right, of which the target
and the drafter like different ones best; where a result stands, one text alone is right. A text is right as far as some
right solution begins with it. So the first wrong character is known exactly, however the text was made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MEND = ", no, "  # stands between a slip and its correction
TARGET, DRAFTER = STYLES = (0, 1)  # whose likings
LIKELY_SLIP = 0.7  # share of the errors that are the first one of their place


@dataclass(frozen=True, slots=True)
class Place:
    """Right phrases, the target's favourite first; one phrase alone is a result or fixed text.

    `drafter` is the drafter's favourite; `errors` are wrong texts that one might write instead, the most likely first.
    """

    phrases: tuple[str, ...]
    drafter: int = 0
    errors: tuple[str, ...] = ()
    is_result: bool = False

    @property
    def free(self) -> bool:
        return len(self.phrases) > 1

    def favourite(self, style: int) -> int:
        return self.drafter if style == DRAFTER else 0

    def choose(self, chance: random.Random, style: int, share: float) -> int:
        """The favourite of a style with probability `share`, else another phrase, more often one that the
        target likes."""
        own = self.favourite(style)
        if not self.free or chance.random() < share:
            return own
        others = [i for i in range(len(self.phrases)) if i != own]
        return chance.choices(others, range(len(others), 0, -1))[0]

    def slip(self, chance: random.Random) -> str:
        """A wrong text."""
        if len(self.errors) == 1 or chance.random() < LIKELY_SLIP:
            return self.errors[0]
        return chance.choice(self.errors[1:])


def fixed(text: str) -> Place:
    return Place((text,))


def result(text: object, *errors: object) -> Place:
    """A place where one text alone is right."""
    wrong = tuple(dict.fromkeys(str(slip) for slip in errors if str(slip) != str(text)))
    return Place((str(text),), errors=wrong, is_result=True)


def wording(phrases: Sequence[str], drafter: int = 1) -> Place:
    """A place where all phrases are right."""
    return Place(tuple(phrases), drafter)


@dataclass(frozen=True, slots=True)
class Check:
    """How far a text is right."""

    right: int  # characters
    whole: bool  # the text is a solution from beginning to end
    begun: bool  # it is the beginning of one, or the whole of it


class Asked(Protocol):
    """Whatever can be asked and whose answer can be told right from wrong."""

    @property
    def family(self) -> str: ...

    @property
    def question(self) -> str: ...

    def solved(self, text: str) -> bool: ...


# Wrong results by their number among the results -> the solution that goes on from them as if they were right.
Retell = Callable[[Mapping[int, str]], tuple[Place, ...]]


@dataclass(frozen=True, slots=True)
class Problem:
    family: str
    question: str
    places: tuple[Place, ...]
    answer: str
    retell: Retell | None = field(default=None, compare=False, repr=False)

    def write(self, chance: random.Random, style: int = TARGET, share: float = 1.0, slip: float = 0.0) -> str:
        """A solution whose wording is chosen at every place: the favourite of a style, with probability `share`.

        With probability `slip` a result is first written wrong and mended at once.
        """
        parts = []
        for place in self.places:
            text = place.phrases[place.choose(chance, style, share)]
            if place.errors and chance.random() < slip:
                text = place.slip(chance) + MEND + text
            parts.append(text)
        return "".join(parts)

    def check(self, text: str) -> Check:
        """Follow all right solutions at once; `right` characters are what the text shares with the nearest of them."""
        ends, right = {0}, 0
        for place in self.places:
            after: set[int] = set()
            for end in ends:
                for phrase in place.phrases:
                    shared = _shared(phrase, text, end)
                    right = max(right, end + shared)
                    if shared == len(phrase):
                        after.add(end + shared)
            ends = after
            if not ends:
                break
        return Check(right, len(text) in ends, right == len(text))

    def solved(self, text: str) -> bool:
        """Whether the last line gives the answer, whatever stands before it."""
        lines = [line for line in text.strip().split("\n") if line.strip()]
        return bool(lines) and lines[-1].rstrip(".").endswith(f" {self.answer}")


def _shared(phrase: str, text: str, at: int) -> int:
    """Characters that a phrase and the text from `at` on begin with alike."""
    count = 0
    for a, b in zip(phrase, text[at : at + len(phrase)], strict=False):
        if a != b:
            break
        count += 1
    return count
