"""Checkers: from a line of a task file to something that can be asked and whose answers can be checked.

A line has `prompt` (or `question`) and what its checker needs: `answer`, `choices`, `tests`. Which checker it is says
`check`; without it the line itself does. A function of the user's may take the place of all of them.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...bench.data.questions import Question as Marked
from ...bench.scoring.scorers import code, letter
from ...errors import UsageError, unknown_name
from ...jsonl import read_lines
from .final_answer import Extract, number, phrase

Row = dict[str, Any]
Judged = Callable[[Row, str], bool]  # a line of the file and an answer -> whether it is right
LETTERS = "ABCDEFGH"
_BLOCK = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Task:
    """One line of a task file with its checker."""

    family: str
    question: str
    row: Row
    check: Checker

    def solved(self, text: str) -> bool:
        return self.check.right(self.row, text)

    def extract(self, text: str) -> str | None:
        """The final answer in one spelling, right or wrong; for agreement with the target's own."""
        return self.check.final(self.row, text)


@dataclass(frozen=True, slots=True)
class Checker:
    """How answers of one kind are read."""

    name: str
    right: Judged
    final: Callable[[Row, str], str | None]
    needs: tuple[str, ...] = ("answer",)


def _by(extract: Extract) -> tuple[Judged, Callable[[Row, str], str | None]]:
    def right(row: Row, text: str) -> bool:
        wanted = extract(str(row["answer"]))
        return wanted is not None and extract(text) == wanted

    return right, lambda row, text: extract(text)


def _choice(row: Row, text: str) -> str | None:
    return letter(Marked("", "", (), reference=str(row.get("answer", ""))), text).answer


def _tests(row: Row, text: str) -> bool:
    asked = Marked("", "", (), reference=str(row["tests"]), stem=str(row.get("stem", "")))
    return code(asked, text).correct


def json_value(text: str) -> str | None:
    """The last JSON document in a text, in one spelling: of a code block, or from a bracket on."""
    blocks = _BLOCK.findall(text)
    decoder = json.JSONDecoder()
    for part in [*reversed(blocks), text]:
        found, at = None, 0
        while (begin := min((i for i in (part.find("{", at), part.find("[", at)) if i >= 0), default=-1)) >= 0:
            try:
                found, at = decoder.raw_decode(part, begin)
            except (ValueError, RecursionError):
                at = begin + 1
        if found is not None:
            return json.dumps(found, sort_keys=True)
    return None


def _same_json(row: Row, text: str) -> bool:
    wanted = row["answer"]
    if isinstance(wanted, str):
        wanted = json.loads(wanted)
    return json_value(text) == json.dumps(wanted, sort_keys=True)


CHECKERS: dict[str, Checker] = {
    each.name: each
    for each in (
        Checker("number", *_by(number)),
        Checker("text", *_by(phrase)),
        Checker("choice", lambda row, text: _choice(row, text) == str(row["answer"]).strip().upper(), _choice),
        Checker("json", _same_json, lambda row, text: json_value(text)),
        Checker("tests", _tests, lambda row, text: "pass" if _tests(row, text) else None, ("tests",)),
    )
}


def guessed(row: Row) -> str:
    """The checker that a line calls for."""
    answer = row.get("answer")
    if "tests" in row:
        return "tests"
    if isinstance(answer, dict | list):
        return "json"
    if "choices" in row or (isinstance(answer, str) and answer.strip().upper() in tuple(LETTERS)):
        return "choice"
    if answer is not None and not isinstance(answer, bool) and number(str(answer)) is not None:
        return "number"
    return "text"


def own_function(spelled: str, option: str) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` names. Its file is run: it is the user's own."""
    path, _, name = spelled.rpartition(":")
    found = importlib.util.spec_from_file_location("foredraft_checker", path) if Path(path).is_file() else None
    if found is None or found.loader is None:
        raise UsageError(f"{option} {spelled}: {path or spelled!r} is no Python file; write FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{option} {spelled}: {path} defines no function {name!r}")
    return cast(Callable[..., Any], function)


def own_checker(spelled: str) -> Checker:
    """A function that is called with a line of the task file and an answer's text; true = right."""
    function = own_function(spelled, "--check")
    return Checker(spelled, lambda row, text: bool(function(row, text)), lambda row, text: phrase(text), ())


def read_task(path: Path, check: str = "") -> list[Task]:
    """The lines of a task file; `check` names one checker for all of them."""
    if not path.is_file():
        raise UsageError(f"{path} is no task file; give JSON lines with `prompt` and `answer` (docs/judge.md)")
    rows = read_lines(path, lambda row: dict(row))
    chosen = own_checker(check) if ":" in check else None
    found = [_task(path, i, row, check, chosen) for i, row in enumerate(rows, 1)]
    if not found:
        raise UsageError(f"{path} holds no line")
    return found


def checker_of(row: Row, check: str = "") -> Task:
    """One line by itself."""
    return _task(Path("line"), 1, row, check, own_checker(check) if ":" in check else None)


def _task(path: Path, line: int, row: Row, check: str, chosen: Checker | None) -> Task:
    name = check or str(row.get("check", "")) or guessed(row)
    if chosen is None and name not in CHECKERS:
        raise unknown_name("checker", name, CHECKERS)
    checker = chosen or CHECKERS[name]
    asked = row.get("prompt", row.get("question"))
    missing = [each for each in checker.needs if each not in row] + ([] if isinstance(asked, str) else ["prompt"])
    if missing:
        raise UsageError(f"{path}, line {line}: checker {checker.name!r} needs {missing[0]!r}")
    return Task(str(row.get("domain", path.stem)), with_choices(str(asked), row.get("choices")), row, checker)


def with_choices(question: str, choices: object) -> str:
    """The choices below the question, each with its letter."""
    if not isinstance(choices, Sequence) or isinstance(choices, str):
        return question
    lines = [f"{name}. {choice}" for name, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([question, *lines, "Answer with the letter of the right choice."])
