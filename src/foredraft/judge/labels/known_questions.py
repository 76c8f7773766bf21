"""Which questions a judge has learnt from, beside its weights: none of them may speak for it in a calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...models.config import read_json
from ..problems.problem import Asked
from .record import LabelledText, group_of

QUESTIONS = "questions.json"


def learnt_from(records: Iterable[LabelledText]) -> dict[str, list[str]]:
    """What the file holds."""
    return {"groups": sorted({record.group for record in records})}


def unseen(folder: Path, problems: Sequence[Asked]) -> list[Asked]:
    """The problems that no label of the judge was about; all of them for a judge that does not say what it learnt."""
    if not (folder / QUESTIONS).is_file():
        return list(problems)
    known = set(read_json(folder / QUESTIONS)["groups"])
    return [problem for problem in problems if group_of(problem.question) not in known]
