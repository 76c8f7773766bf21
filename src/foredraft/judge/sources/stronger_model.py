"""A stronger model as a source of labels, over any endpoint that speaks the chat completions of OpenAI.

The answer is shown in numbered pieces, and the model replies with one JSON object: the number of the first piece that
is wrong, or null. A reply that is none, or a number that does not exist, is an unsure verdict and counts nowhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from urllib.error import URLError
from urllib.request import Request, urlopen

from ...errors import ForedraftError
from ..labels.annotations import Note
from .locate import UNSURE, Verdict

TASK = (
    "Below are a question and an answer, cut into numbered pieces. Check the answer step by step. Style and wording do "
    "not matter, only whether what it says is right. Reply with one JSON object and nothing else: "
    '{"first_wrong": N} with the number of the first piece that says something wrong, or {"first_wrong": null} if all '
    "of it is right."
)
_PIECES = re.compile(r"[^\s]+\s*")
_OBJECT = re.compile(r"\{[^{}]*\}")


def pieces(answer: str) -> list[int]:
    """The characters at which words begin."""
    return [match.start() for match in _PIECES.finditer(answer)]


def prompt(note: Note) -> str:
    begins = [*pieces(note.answer), len(note.answer)]
    shown = "".join(f"[{i}] {note.answer[a:b]}" for i, (a, b) in enumerate(pairwise(begins)))
    right = note.raw.get("reference")
    known = f"\n\nThe right final answer is: {right}" if right is not None else ""
    return f"{TASK}\n\nQuestion:\n{note.question}\n\nAnswer:\n{shown}{known}"


def parse(note: Note, reply: str) -> Verdict:
    for found in reversed(_OBJECT.findall(reply)):
        try:
            said = json.loads(found)["first_wrong"]
        except (ValueError, KeyError, TypeError):
            continue
        begins = pieces(note.answer)
        if said is None:
            return Verdict(None)
        if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < len(begins):
            return Verdict(begins[said])
    return UNSURE


@dataclass(frozen=True, slots=True)
class StrongerModel:
    """url: up to and including /v1."""

    url: str
    model: str
    key: str = ""
    at_once: int = 4
    seconds: float = 120.0

    @property
    def name(self) -> str:
        return f"model:{self.model}"

    def locate(self, notes: Sequence[Note]) -> Iterator[tuple[Note, Verdict]]:
        with ThreadPoolExecutor(self.at_once) as pool:
            for note, reply in zip(notes, pool.map(lambda note: self.ask(prompt(note)), notes), strict=True):
                yield note, parse(note, reply)

    def ask(self, text: str) -> str:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = Request(f"{self.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=self.seconds) as reply:
                return str(json.load(reply)["choices"][0]["message"]["content"])
        except (URLError, OSError, ValueError, KeyError, IndexError) as error:
            raise ForedraftError(
                f"{self.url} gave no chat completion: {error}; what is located so far is kept"
            ) from None
