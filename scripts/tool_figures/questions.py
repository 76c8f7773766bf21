"""Questions with a known tool call, from conversations in the form of Glaive's function-calling set."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = dict[str, Any]
ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True)
class Question:
    """A conversation up to a call, the tools that are offered, and the call that the data has there."""

    messages: list[Document]
    tools: list[Document]
    name: str
    arguments: Document

    def body(self, choice: str, tokens: int) -> Document:
        """As the API takes it."""
        tools = [{"type": "function", "function": tool} for tool in self.tools]
        asked = {"messages": self.messages, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        return asked | {"temperature": 0, "max_tokens": tokens, "return_token_ids": True}


def read(path: Path) -> tuple[list[Question], str]:
    """(all questions of a file, its hash)"""
    data = path.read_bytes()
    rows = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return [question for row in rows for question in questions(row)], hashlib.sha256(data).hexdigest()


def questions(row: Document) -> Iterator[Question]:
    """One for every call of a conversation, with all that was said before it."""
    tools = json.loads(row["tools"] or "[]")
    messages: list[Document] = []
    for number, turn in enumerate(row["conversations"]):
        kind, text = turn["from"], turn["value"]
        if kind == "function_call":
            call = json.loads(text)
            if any(tool["name"] == call["name"] for tool in tools):
                yield Question(list(messages), tools, call["name"], call["arguments"])
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            made = {"id": f"call_{number}", "type": "function", "function": function}
            messages.append({"role": "assistant", "tool_calls": [made]})
        elif kind == "observation":
            messages.append({"role": "tool", "tool_call_id": f"call_{number - 1}", "content": text})
        else:
            messages.append({"role": ROLES[kind], "content": text})


def spread(found: list[Question], limit: int) -> list[Question]:
    """So many of them, from all over the file; those that offer a choice of tools first."""
    ranked = sorted(found, key=lambda question: len(question.tools) < 2)
    choosing = sum(len(question.tools) > 1 for question in found)
    if choosing >= limit:
        return [ranked[i * choosing // limit] for i in range(limit)]
    rest, more = ranked[choosing:], min(limit, len(found)) - choosing
    return ranked[:choosing] + [rest[i * len(rest) // more] for i in range(more)]


def score(question: Question, calls: list[Document]) -> Document:
    """What is right about an answer's first call; numbers are equal as numbers, texts letter by letter."""
    if not calls:
        return {"called": False, "name": False, "arguments": False, "values": 0, "of": len(question.arguments)}
    function = calls[0]["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:  # cut at its longest
        arguments = {}
    named = function["name"] == question.name
    right = sum(named and key in arguments and arguments[key] == value for key, value in question.arguments.items())
    exact = named and arguments == question.arguments
    return {"called": True, "name": named, "arguments": exact, "values": right, "of": len(question.arguments)}
