"""Questions of a data set, where an answer counts as solved if it ends as the target's own does.

A small target seldom finds what a data set calls right; whether a judge changes its answers can still be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..eval.paired_eval import Arm, PairedEval
from .final_answer import Extract
from .problem import Asked


@dataclass(frozen=True, slots=True)
class Question:
    """A question and how a final answer is read out of a text."""

    family: str  # the data set
    question: str
    extract: Extract

    def solved(self, text: str) -> bool:
        return self.extract(text) is not None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The same, and the final answer that the target gives."""

    family: str
    question: str
    extract: Extract
    answer: str

    def solved(self, text: str) -> bool:
        return self.extract(text) == self.answer


class Open(Protocol):
    """What can be asked and has a final answer, right or wrong."""

    @property
    def family(self) -> str: ...

    @property
    def question(self) -> str: ...

    @property
    def extract(self) -> Extract: ...

    def solved(self, text: str) -> bool: ...


def agreements(harness: PairedEval, target: Arm, questions: Sequence[Open]) -> list[Asked]:
    """Let the target answer; questions to which it finds no final answer are left out."""
    found: list[Asked] = []
    for question, given in zip(questions, harness.answers(target, questions), strict=True):
        answer = question.extract(harness.text(given.output))
        if answer is not None:
            found.append(Agreement(question.family, question.question, question.extract, answer))
    return found
