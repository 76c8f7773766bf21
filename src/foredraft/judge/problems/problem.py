"""Problems whose written solutions a program can check, character by character.

A solution is a row of places. Wherever wording is free, a place has several phrases, all right, and each style of
writing prefers its own; where a result stands, one text alone is right. A text is right as far as some right solution
begins with it. So the first wrong character is known exactly, however the text was made.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MEND = ", no, "  # stands between a slip and its correction


@dataclass(frozen=True, slots=True)
class Place:
    """Right phrases by style; one phrase in all is a result. `slips` are wrong texts that one might write instead."""

    styles: tuple[tuple[str, ...], ...]
    slips: tuple[str, ...] = ()

    @property
    def phrases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(phrase for style in self.styles for phrase in style))


def fixed(text: str) -> Place:
    return Place(((text,),))


def result(text: object, *slips: object) -> Place:
    """A place where one text alone is right."""
    wrong = tuple(dict.fromkeys(str(slip) for slip in slips if str(slip) != str(text)))
    return Place(((str(text),),), wrong)


def wording(*styles: Sequence[str]) -> Place:
    """A place where style s prefers the phrases styles[s]."""
    return Place(tuple(tuple(style) for style in styles))


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


@dataclass(frozen=True, slots=True)
class Problem:
    family: str
    question: str
    places: tuple[Place, ...]
    answer: str

    def write(self, chance: random.Random, style: int, other: float = 0.0, slip: float = 0.0) -> str:
        """A solution, its wording chosen at every place: of `style`, or with chance `other` of any other style.

        With chance `slip` a result is first written wrong and mended at once.
        """
        parts = []
        for place in self.places:
            mine = min(style, len(place.styles) - 1)
            styles = [s for s in range(len(place.styles)) if s != mine]
            chosen = chance.choice(styles) if styles and chance.random() < other else mine
            text = chance.choice(place.styles[chosen])
            if place.slips and chance.random() < slip:
                text = chance.choice(place.slips) + MEND + text
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
