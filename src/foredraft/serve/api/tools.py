"""Tools that a model may call: as the prompt and the grammar have them, and as calls come out of a text.

A call is written as `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Qwen and Hermes do. An answer is text
or calls, never both; the grammar holds every row of a draft tree to the tools' schemas.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .api_errors import bad_request
from .schema import ChatBody, Message, NamedTool, Tool

Document = dict[str, Any]
OPEN, CLOSE, BETWEEN = "<tool_call>", "</tool_call>", "\n"
NO_ARGUMENTS: Document = {"type": "object", "properties": {}, "additionalProperties": False}
OWN_ROOT = "urn:arguments"  # the parameters are a document of their own: "#/$defs/.." in them means theirs
KEY = '"arguments":'  # with its colon: a tool may be called "arguments"
ASKING = (
    "You may call tools. To call one, answer with nothing but a line\n"
    f'{OPEN}{{"name": NAME, "arguments": {{..}}}}{CLOSE}\nfor each call. The tools, as JSON:\n'
)


def tool_grammar(body: ChatBody) -> str | None:
    """The grammar that holds an answer to the tools; None = it may not call any."""
    tools = wanted_tools(body)
    if not tools:
        return None
    named = isinstance(body.tool_choice, NamedTool)  # who names a tool wants it once
    more = "" if named or body.parallel_tool_calls is False else f" ({json.dumps(BETWEEN)} call)*"
    text = "" if must_call(body) else " | TEXT?"
    rules = [f"start: calls{text}", f"calls: call{more}"]
    rules.append(f"call: {json.dumps(OPEN)} ({' | '.join(f'tool{i}' for i in range(len(tools)))}) {json.dumps(CLOSE)}")
    if text:  # anything but a call
        rules.append(f"TEXT: /(?s:.)+/ & ~/(?s:.)*{OPEN}(?s:.)*/")
    for i, tool in enumerate(tools):
        rules.append(f"tool{i}: %json {json.dumps(_call_schema(tool))}")
    return "lark\n" + "\n".join(rules) + "\n"


def _call_schema(tool: Tool) -> Document:
    own = tool.function.parameters
    arguments = NO_ARGUMENTS if not own else {"type": "object", "$id": OWN_ROOT} | own
    parts = {"name": {"const": tool.function.name}, "arguments": arguments}
    spaces = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as `json.dumps` writes
    whole = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    return whole | {"x-guidance": spaces}


def wanted_tools(body: ChatBody) -> list[Tool]:
    """The tools that this answer may call."""
    choice, tools = body.tool_choice, body.tools or []
    if choice == "none":
        return []
    if choice is not None and not tools and choice != "auto":
        raise bad_request("tool_choice needs tools to choose from", "tool_choice")
    for tool in tools:
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise bad_request(f"the parameters of {tool.function.name!r} must be of type object", "tools")
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_request("two tools have the same name", "tools")
    if choice is None or isinstance(choice, str):
        return tools
    found = [tool for tool in tools if tool.function.name == choice.function.name]
    if not found:
        raise bad_request(f"tool_choice names {choice.function.name!r}, which is not among the tools", "tool_choice")
    return found


def must_call(body: ChatBody) -> bool:
    return body.tool_choice not in (None, "none", "auto")


def with_tools(messages: list[Message], tools: list[Tool], template: str) -> tuple[list[Document], Document]:
    """Messages and variables for a chat template; one that knows no tools finds them in the first message instead."""
    knows = "tools" in template
    plain = [_message(message, knows) for message in messages]
    listed = [tool.model_dump(exclude_none=True) for tool in tools]
    if not listed:
        return plain, {}
    if knows:
        return plain, {"tools": listed}
    asking = ASKING + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in listed)
    if plain[0]["role"] == "system":
        return [plain[0] | {"content": f"{plain[0]['content']}\n\n{asking}"}, *plain[1:]], {}
    return [{"role": "system", "content": asking}, *plain], {}


def _message(message: Message, knows: bool) -> Document:
    """As the template reads it: calls beside the text where it knows them, else written out in the text."""
    plain: Document = dict(message.plain())
    calls = [
        {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
        for call in message.tool_calls or ()
    ]
    if calls and knows:
        plain["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    elif calls:
        written = BETWEEN.join(f"{OPEN}{json.dumps(call, ensure_ascii=False)}{CLOSE}" for call in calls)
        plain["content"] = "\n".join(filter(None, [plain["content"], written]))
    if message.name and message.role == "tool":
        plain["name"] = message.name
    return plain


def _arguments(text: str) -> Any:
    """Arguments as they were sent; what is no JSON stays text, and so does what could not be written again: half of a
    surrogate pair, or lists nested without end.
    """
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return found


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a piece of text adds to a call; the first one of a call has its id and name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None

    def as_json(self) -> Document:
        function: Document = {"arguments": self.arguments}
        if self.id is None:
            return {"index": self.index, "function": function}
        return {"index": self.index, "id": self.id, "type": "function", "function": {"name": self.name} | function}


@dataclass(slots=True)
class CallParser:
    """Takes calls out of a text that comes in pieces."""

    _held: str = ""  # text of which it is not known yet what it is
    _text: bool = False  # whether the answer is text
    _count: int = 0  # calls that have begun
    _name: str | None = None  # of the call that is being read; None = its beginning is not complete
    _scan: _Scan | None = field(default=None)

    def push(self, piece: str, last: bool) -> tuple[str, list[CallDelta]]:
        """(text of the answer, what was added to calls)"""
        self._held += piece
        if not self._text and self._count == 0 and not OPEN.startswith(self._held[: len(OPEN)]):
            self._text = True
        if self._text or (last and self._count == 0 and not self._held.startswith(OPEN)):
            said, self._held = self._held, ""
            return said, []
        return "", list(self._calls())

    def _calls(self) -> Iterator[CallDelta]:
        while True:
            if self._scan is not None:
                added, rest = self._scan.take(self._held)
                self._held = rest
                if added:
                    yield CallDelta(self._count - 1, added)
                if not self._scan.done:
                    return
                self._scan = None
            begun = self._begin()
            if begun is None:
                return
            yield begun

    def _begin(self) -> CallDelta | None:
        """The next call, as soon as its name and the place of its arguments are there."""
        start = self._held.find(OPEN)
        key = self._held.find(KEY, start + len(OPEN)) if start >= 0 else -1
        place = self._held.find("{", key) if key >= 0 else -1
        if place < 0:
            return None
        head = self._held[start + len(OPEN) : key].rstrip().removesuffix(",") + "}"
        try:
            name = json.loads(head)["name"]
        except (ValueError, LookupError, TypeError):
            return None
        self._held, self._scan = self._held[place:], _Scan()
        self._count += 1
        return CallDelta(self._count - 1, "", f"call_{uuid.uuid4().hex[:24]}", str(name))


@dataclass(slots=True)
class _Scan:
    """Reads one JSON object to its end, character by character."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    done: bool = False

    def take(self, text: str) -> tuple[str, str]:
        """(what belongs to the object, what comes after it)"""
        for i, char in enumerate(text):
            self._read(char)
            if self.done:
                return text[: i + 1], text[i + 1 :]
        return text, ""

    def _read(self, char: str) -> None:
        if self.quoted:
            self.quoted = self.escaped or char != '"'
            self.escaped = char == "\\" and not self.escaped
            return
        self.quoted = char == '"'
        self.depth += (char in "{[") - (char in "}]")
        self.done = self.depth == 0


def whole_calls(deltas: list[CallDelta]) -> list[Document]:
    """Deltas put together, as a whole answer has them."""
    found: list[Document] = []
    for delta in deltas:
        if delta.id is not None:
            found.append({"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": ""}})
        found[delta.index]["function"]["arguments"] += delta.arguments
    return found
