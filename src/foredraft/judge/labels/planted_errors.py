"""Mistakes planted into a solution at a place of our choice. What is wrong about the text, the checker finds out."""

from __future__ import annotations

import random
from dataclasses import replace

from ..problems.problem import MEND, Problem

DIGITS = "0123456789"
TAKEN_BACK = 0.3  # share of mistakes that are a right result, followed by a mend, as drafters write it


def plant(problem: Problem, chance: random.Random, style: int, share: float = 1.0) -> str:
    """A solution with one mistake at a random place; after it the text goes on as if nothing had happened."""
    parts = [replace(problem, places=(place,)).write(chance, style, share) for place in problem.places]
    results = [at for at, place in enumerate(problem.places) if place.errors]
    if results and chance.random() < TAKEN_BACK:
        at = chance.choice(results)
        parts[at] += MEND + problem.places[at].slip(chance)
    else:
        at = chance.randrange(len(parts))
        parts[at] = _slip(problem, chance, parts, at)
    return "".join(parts)


def _slip(problem: Problem, chance: random.Random, parts: list[str], at: int) -> str:
    """A step left out, a part of another place, a slip that the problem knows, or a digit taken for another."""
    found = ["", chance.choice(parts), *problem.places[at].errors]
    if any(char in DIGITS for char in parts[at]):
        found += [_misread(parts[at], chance) for _ in range(4)]  # looks most like a real mistake
    return chance.choice(found)


def _misread(text: str, chance: random.Random) -> str:
    """One digit is another one."""
    at = chance.choice([i for i, char in enumerate(text) if char in DIGITS])
    return text[:at] + chance.choice(DIGITS.replace(text[at], "")) + text[at + 1 :]
