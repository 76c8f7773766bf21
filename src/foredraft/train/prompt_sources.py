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
    "Summarize: {text}",
    "Summarize the following text in a few sentences.\n\n{text}",
    "What are the main points of this passage?\n\n{text}",
    "{text}\n\nBased on the passage above, who or what is it mainly about, and what happens?",
    "Answer from the text alone. What does it say about {topic}?\n\n{text}",
    "{text}\nWho is {topic}?",
    "{text}\nWhat is {topic}?",
    "{text}\nWhere and when did this happen?",
    "{text}\nHow is {topic} described?",
    "{text}\n\nWrite three questions about this text and answer each of them.",
    "Rewrite this in simpler words:\n\n{text}",
    "Continue this text:\n\n{text}",
    "Translate German to English: {short}",
    "Translate English to French: {short}",
    "Explain this sentence: {short}",
    "What do you know about {topic}?",
    "Who is {topic}?",
)
# Beginnings of documents that the target goes on with, outside its template: news, reference works, letters.
OPENINGS = (
    "(CNN) -- ", "LONDON (Reuters) - ", "WASHINGTON (AP) -- ", "NEW YORK -- ", "By a staff reporter\n\n", "Police in ",
    "A man has been ", "The government ", "Scientists have ", "The company said ", "Manchester United ", "The film ",
    "The actress ", "President ", "Researchers at the University of ", "A new study ", "In the early hours of ",
    "Two people were ", "The city of ", "The history of ", "The band ", "The battle of ", "The species ", "The river ",
    "He was born in ", "She was born in ", "The novel ", "The theory of ", "The television series ", "The economy of ",
    "The law ", "Dear Sir or Madam,\n\n", "Hi everyone,\n\n", "Review: ", "Abstract\n\n", "Once upon a time ",
)  # fmt: skip
# Openings of a user's turn from which the target writes the rest itself: what people ask chat models for.
STARTERS = (
    "", "", "", "", "Write", "Write a", "Write a short story about", "Write an email", "Write a poem", "Compose",
    "Pretend to be", "Imagine you are", "Act as", "You are a", "Explain", "Explain how", "Explain why", "Describe",
    "What is", "What are", "What is the difference between", "What was", "How do I", "How does", "How many", "How much",
    "How can I", "Why", "Why do", "Who", "Who is", "Who was", "Who wrote", "Who played", "When did", "When was",
    "Where is", "Where was", "Which", "Is it", "Can you", "Could you", "Give me", "Tell me", "Tell me about", "List",
    "Name", "Compare", "Create a", "Design", "Suggest", "Analyze", "Evaluate", "Extract", "Identify", "Classify",
    "Summarize: ", "Summarize: The", "Summarize the following text:", "Summarize this article:", "Read the passage",
    "Translate German to English: ", "Translate German to English: Die", "Translate German to English: Der",
    "Translate to French: ", "Translate the following", "Rewrite", "Fix the grammar", "Continue", "Solve", "Calculate",
    "If", "A", "There are", "In a", "Sam has", "Write a Python function", "Write a program", "Implement", "Write code",
    "def ", "Debug", "Convert", "What does this code do?", "The following", "Based on the text", "Given",
)  # fmt: skip
SHORTEST = 200  # characters of a passage
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
        raise UsageError(f"{path} has no paragraph of 80 characters or more; prompts need passages")
    found = []
    for _ in range(count):
        size, at = chosen.randrange(SHORTEST, longest), chosen.randrange(len(paragraphs))
        text = paragraphs[at]
        while len(text) < size and at + 1 < len(paragraphs):  # long passages run over several paragraphs
            at += 1
            text += "\n\n" + paragraphs[at]
        found.append(ask_about(text[:size], chosen))
    return found


def ask_about(text: str, chosen: random.Random) -> str:
    """A question about a passage."""
    return chosen.choice(TEMPLATES).format(text=text, short=_sentence(text), topic=_topic(text, chosen))


def openings(count: int, seed: int = 0) -> list[str]:
    """Openings from which the target writes a document."""
    chosen = random.Random(seed)
    return [chosen.choice(OPENINGS) for _ in range(count)]


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
    except FileNotFoundError:
        raise ForedraftError(f"{path} does not exist; name a file of questions or of text") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ForedraftError(f"{path} cannot be read as text: {error}") from None


def _sentence(text: str) -> str:
    sentences: Iterable[str] = (s for s in re.split(r"(?<=[.!?])\s+", text) if 30 < len(s) < 250)
    return next(iter(sentences), text[:200])


def _topic(text: str, chosen: random.Random) -> str:
    """A name out of a passage: words that begin with capitals."""
    names = re.findall(r"(?<![.!?] )\b[A-Z][a-z]+(?: [A-Z][a-z]+)*", text)
    return chosen.choice(names) if names else text.split()[0]
