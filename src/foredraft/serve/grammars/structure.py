"""What holds an answer to a form: OpenAI's `response_format` and tools, and vLLM's names for schemas and grammars."""

from __future__ import annotations

import json

from ..api.api_errors import bad_request
from ..api.schema import ChatBody, CompletionBody, Generation
from ..api.tools import must_call, tool_grammar
from .json_grammar import ANY_OBJECT, Schema


def wanted_schema(body: ChatBody | CompletionBody) -> Schema | None:
    """The one schema or grammar that an answer is to be held to, if any."""
    found = {name: schema for name, schema in _asked(body).items() if schema is not None}
    calls = tool_grammar(body) if isinstance(body, ChatBody) else None
    if calls is not None and isinstance(body, ChatBody):
        if found and must_call(body):
            raise bad_request(f"tool_choice and {next(iter(found))} ask for different texts; give one", "tool_choice")
        if found:
            raise bad_request(f"tools and {next(iter(found))} cannot go together; set tool_choice to none", "tools")
        found["tools"] = calls
    if len(found) > 1:
        raise bad_request(f"{' and '.join(found)} ask for the same thing; give one of them", next(iter(found)))
    if found and body.ignore_eos:
        raise bad_request(f"a {next(iter(found))} ends the text; it cannot go with ignore_eos", "ignore_eos")
    return next(iter(found.values()), None)


def _asked(body: Generation) -> dict[str, Schema | None]:
    """Every field that may hold one."""
    wanted, structured = body.response_format, body.structured_outputs
    named: dict[str, Schema | None] = {"guided_json": body.guided_json}
    named |= {
        "guided_regex": _regex(body.guided_regex),
        "guided_choice": _choice(body.guided_choice),
        "guided_grammar": _lark(body.guided_grammar),
    }
    if structured is not None:
        any_object = ANY_OBJECT if structured.json_object else None
        named |= {
            "structured_outputs.json": any_object if structured.json_schema is None else structured.json_schema,
            "structured_outputs.regex": _regex(structured.regex),
            "structured_outputs.choice": _choice(structured.choice),
            "structured_outputs.grammar": _lark(structured.grammar),
        }
    if wanted is not None and wanted.type != "text":
        if wanted.type == "json_schema" and wanted.json_schema is None:
            raise bad_request("response_format: json_schema is missing", "response_format")
        named["response_format"] = ANY_OBJECT if wanted.json_schema is None else wanted.json_schema.definition
    return named


def _regex(text: str | None) -> str | None:
    return None if text is None else f"regex\n{text}"


def _lark(text: str | None) -> str | None:
    return None if text is None else f"lark\n{text}"


def _choice(texts: list[str] | None) -> str | None:
    return None if texts is None else _lark("start: " + " | ".join(json.dumps(t, ensure_ascii=False) for t in texts))
