"""Final answers out of written ones. Two texts mean the same to mining if their final answers are equal.

Data sets with scorers of their own bring their own extractor; this file has the one of program-checked problems.
"""

from __future__ import annotations

from collections.abc import Callable

Extract = Callable[[str], str | None]  # a text -> its final answer in one spelling; None = it has none

ANSWER = "Answer:"


def answer_line(text: str) -> str | None:
    """What follows `Answer:` in the last line that has it, without the full stop."""
    for line in reversed(text.split("\n")):
        if ANSWER in line:
            return line.rpartition(ANSWER)[2].strip().rstrip(".").rstrip() or None
    return None
