"""Final answers out of written ones. Two texts mean the same if their final answers are equal.

A final answer stands in a box, after `####`, or after the last "answer"; else it is the last number, or the last line.
Numbers are compared as numbers, however they are written: 1,234.50, $12, 12%, 3/4, -5, 1e3, a LaTeX fraction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

Extract = Callable[[str], str | None]  # a text -> its final answer in one spelling; None = it has none

ANSWER = "Answer:"
_MARK = re.compile(r"(?:final\s+)?\banswer\b\s*(?:is|was|=|:)*", re.IGNORECASE)
_FRACTION = re.compile(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_GROUPED = r"\d{1,3}(?:[,\u00a0\u202f' ]\d{3})+(?!\d)"
_NUMBER = re.compile(
    rf"(?<![\w.])(-?)\s?[$€£]?(-?)((?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)(?:e([+-]?\d{{1,3}})(?!\d))?(?:\s*/\s*(\d+)(?![\d/]))?",
    re.IGNORECASE,
)
MOST_DIGITS = 1000  # a model that repeats a digit for ever has said no number
_WRAPPING = " \t\n*_`\"'.,;:!()[]{}$\\"


def answer_line(text: str) -> str | None:
    """What the last line says after `Answer:`; the form of program-checked problems."""
    found = [line for line in text.strip().split("\n") if line.strip()]
    if not found or ANSWER not in found[-1]:
        return None
    return found[-1].rpartition(ANSWER)[2].strip().rstrip(".").strip() or None


def boxed(text: str) -> str | None:
    r"""What the last \boxed{..} holds, braces inside of it included."""
    begin = text.rfind("\\boxed{")
    if begin < 0:
        return None
    depth, at = 1, begin + len("\\boxed{")
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[at:end]
    return text[at:]


def final_part(text: str) -> str | None:
    """The part of a text that says that it is the answer; None = nothing says so."""
    if (inside := boxed(text)) is not None:
        return inside
    if "####" in text:
        return text.rpartition("####")[2]
    marks = list(_MARK.finditer(text))
    return text[marks[-1].end() :] if marks else None


def numbers(text: str) -> list[Fraction]:
    """All numbers of a text, in order."""
    plain = _FRACTION.sub(r" \1/\2 ", text.replace("\N{MINUS SIGN}", "-").replace("\\!", "").replace("{,}", ","))
    found = []
    for before, inner, digits, power, below in _NUMBER.findall(plain):
        if max(len(digits), len(below)) > MOST_DIGITS:
            continue
        value = Fraction(re.sub(r"[,\u00a0\u202f' ]", "", digits)) * Fraction(10) ** (int(power) if power else 0)
        if below:
            value = value / int(below) if int(below) else Fraction(0)
        found.append(-value if before or inner else value)
    return found


def number(text: str) -> str | None:
    """The final number in one spelling: the first one of the part that is called the answer, else the last of all."""
    part = final_part(text)
    said = numbers(part) if part is not None else []
    found = said[:1] or numbers(text)[-1:]
    return str(found[0]) if found else None


def phrase(text: str) -> str | None:
    """The final words, without case, marks and markup: the part that is called the answer, else the last line."""
    part = final_part(text)
    lines = [line for line in (text if part is None else part).split("\n") if line.strip(_WRAPPING)]
    if not lines:
        return None
    line = lines[-1] if part is None else lines[0]
    return " ".join(line.strip(_WRAPPING).casefold().split()) or None
