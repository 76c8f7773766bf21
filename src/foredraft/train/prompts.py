"""Where prompts come from: files of questions, passages of text in templates, and the target itself."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ForedraftError, UsageError

# What may be asked about a passage. The tasks are those that users bring to a chat model.
TEMPLATES = (
    "Summarize: {text}",
    "Summarize the following text in a few sentences.\n\n{text}",
    "What are the main points of this passage?\n\n{text}",
    "{text}\n\nBased on the passage above, who or what is it mainly about, and what happens?",
    "Answer from the text alone. What does it say about {topic}?\n\n{text}",
    "{text}\n\nWrite three questions about this text and answer each of them.",
    "Rewrite this in simpler words:\n\n{text}",
    "Continue this text:\n\n{text}",
    "Translate German to English: {short}",
    "Translate English to French: {short}",
    "Explain this sentence: {short}",
    "What do you know about {topic}?",
    "Who is {topic}?",
)
# Openings of a user's turn from which the target writes the rest itself.
STARTERS = (
    "", "", "", "Write", "Write a", "Explain", "What is", "What are", "How do I", "How many", "Why", "Who", "When did",
    "Create a", "Describe", "Compare", "Write a Python function", "Solve", "Give me", "Tell me", "Imagine", "List",
)  # fmt: skip
QUESTION_KEYS = ("turns", "question", "prompt", "instruction", "text")


def from_file(path: Path) -> list[str]:
    """Questions of a JSON-lines file (`turns`, `question`, `prompt`, `instruction` or `text`), or one a line."""
    found = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        if not line.lstrip().startswith("{"):
            found.append(line.strip())
            continue
        try:
            found.append(_question(json.loads(line)))
        except (ValueError, KeyError) as error:
            raise ForedraftError(f"{path}, line {number}: no question could be read ({error})") from None
    return found


def from_text(path: Path, count: int, seed: int = 0, longest: int = 1200) -> list[str]:
    """Passages of a text file in templates."""
    chosen = random.Random(seed)
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", _text(path))]
    paragraphs = [p for p in paragraphs if len(p) > 80]
    if not paragraphs:
        raise UsageError(f"{path} has no paragraph of 80 letters or more; prompts need passages")
    found = []
    for _ in range(count):
        text = chosen.choice(paragraphs)
        begin = chosen.randrange(max(1, len(text) - longest))
        text = text[begin : begin + chosen.randrange(200, longest)]
        found.append(chosen.choice(TEMPLATES).format(text=text, short=_sentence(text), topic=_topic(text, chosen)))
    return found


def starters(count: int, seed: int = 0) -> list[str]:
    """Openings from which the target writes a user's turn."""
    chosen = random.Random(seed)
    return [chosen.choice(STARTERS) for _ in range(count)]


def _question(record: dict[str, Any]) -> str:
    for key in QUESTION_KEYS:
        value = record.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str):
            return value
    raise KeyError(f"none of {', '.join(QUESTION_KEYS)}")


def _text(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return file.read()
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ForedraftError(f"{path} cannot be read as text: {error}") from None


def _sentence(text: str) -> str:
    sentences: Iterable[str] = (s for s in re.split(r"(?<=[.!?])\s+", text) if 30 < len(s) < 250)
    return next(iter(sentences), text[:200])


def _topic(text: str, chosen: random.Random) -> str:
    """A name out of a passage: words that begin with capitals."""
    names = re.findall(r"(?<![.!?] )\b[A-Z][a-z]+(?: [A-Z][a-z]+)*", text)
    return chosen.choice(names) if names else text.split()[0]
