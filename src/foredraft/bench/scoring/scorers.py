"""Scorers: from the text of an answer to its final answer and whether that is right.

`number` compares the last number, `letter` the chosen letter, `code` runs unit tests in a sandbox. A scorer knows the
text and the reference, never the method that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...errors import unknown_name
from ...jsonl import JsonLines
from ..data.questions import Question
from ..results.records import Key, Record
from .quality import Score
from .sandbox import passes

Scorer = Callable[[Question, str], Score]

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
FENCE = re.compile(r"```(?:python|py)?[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
CHOSEN = re.compile(r"\b(?i:answer|choice|option)\s*(?i:is)?[\s:(*]*([A-Hb-h])\b")  # a lone `a` is an article
LETTER = re.compile(r"(?:^|[\s(*\"'])([A-H])(?=[\s.):,*\"']|$)")


def number(question: Question, text: str) -> Score:
    """The number after `####` or `answer is`, else the last one."""
    for mark in ("####", "answer is", "answer:"):
        *_, last = (None, *re.finditer(mark, text, re.IGNORECASE))
        if last is not None and (found := NUMBER.search(text, last.end())):
            return _number(found[0], question.reference)
    numbers = NUMBER.findall(text)
    return _number(numbers[-1], question.reference) if numbers else Score(None, False)


def _number(found: str, reference: str) -> Score:
    value = float(found.replace(",", ""))
    return Score(f"{value:.15g}", abs(value - float(reference.replace(",", ""))) < 1e-6)


def letter(question: Question, text: str) -> Score:
    """The letter that is called the answer, else the first one that stands by itself."""
    found = CHOSEN.search(text) or LETTER.search(text)
    if found is None:
        return Score(None, False)
    return Score(found[1].upper(), found[1].upper() == question.reference)


def code(question: Question, text: str) -> Score:
    """Whether the unit tests pass; that is the final answer too, since programs differ in a thousand ways."""
    block = FENCE.search(text)
    program = block[1] if block is not None else text
    if question.stem and not re.search(r"^def ", program, re.MULTILINE):
        program = question.stem + program  # only the body was written
    elif question.stem:
        program = _before_the_function(question.stem) + program
    correct = passes(f"{program}\n\n{question.reference}\n")
    return Score("pass" if correct else "fail", correct)


def _before_the_function(stem: str) -> str:
    """Imports and helper functions that the asked one, which comes last, may call."""
    return stem[: stem.rfind("\ndef ") + 1]


SCORERS: dict[str, Scorer] = {"number": number, "letter": letter, "code": code}


def score(question: Question, text: str) -> Score:
    """Mark one answer."""
    if question.scorer not in SCORERS:
        raise unknown_name("scorer", question.scorer, SCORERS)
    return SCORERS[question.scorer](question, text)


def score_all(
    records: Iterable[Record], questions: Iterable[Question], path: Path, progress: Callable[[], None] = lambda: None
) -> dict[Key, Score]:
    """Scores of the last turn of all scored questions; kept in a file, so that nothing is scored twice."""
    log = JsonLines(path, _from_row)
    known = dict(log.rows)
    by_name = {(question.task, question.id): question for question in questions if question.scorer}
    for record in records:
        question = by_name.get(record.key[:2])
        if question is None or record.key in known or record.error or record.key.turn != len(question.turns) - 1:
            continue
        mark = known[record.key] = score(question, record.text)
        log.append([*record.key, mark.answer, mark.correct])
        progress()
    return known


def _from_row(row: list[Any]) -> tuple[Key, Score]:
    *key, answer, correct = row
    return Key(*key), Score(answer, correct)
