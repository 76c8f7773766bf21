"""Answers in the form of OpenAI's Responses API, whole or as typed events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from .api_errors import ApiError
from .assemble import Piece
from .responses_body import ResponsesChat
from .tools import whole_calls

Document = dict[str, Any]
Events = AsyncGenerator[bytes, None]


class ResponsesResponse:
    """One response: a message, or calls."""

    def __init__(self, body: ResponsesChat) -> None:
        self._body, self._id, self._born = body.asked, f"resp_{uuid.uuid4().hex}", int(time.time())
        self._message = f"msg_{uuid.uuid4().hex}"
        self._number = 0

    def whole(self, pieces: list[Piece], usage: Document) -> Document:
        (piece,) = pieces
        return self._document(_status(piece), self._output(piece), usage)

    async def stream(self, pieces: AsyncIterator[Piece], usage: Callable[[], Document]) -> Events:
        """Events in the order of the API: response, item, part, deltas, and the same backwards."""
        yield self._event("response.created", response=self._document("in_progress", [], None))
        yield self._event("response.in_progress", response=self._document("in_progress", [], None))
        whole = Piece(0)
        try:
            async for piece in pieces:
                for said in self._said(whole, piece):
                    yield said
                whole.add(piece)
        except ApiError as error:
            yield self._event("response.failed", response=self._failed(whole, error, usage()))
            return
        output = self._output(whole)
        if not whole.calls:
            if not whole.text:
                for said in self._open_message():
                    yield said
            yield self._text_event("output_text.done", text=whole.text)
            yield self._text_event("content_part.done", part=_text(whole.text))
        for index, item in enumerate(output):
            if item["type"] == "function_call":
                more = {"item_id": item["id"], "output_index": index, "arguments": item["arguments"]}
                yield self._event("response.function_call_arguments.done", name=item["name"], **more)
            yield self._event("response.output_item.done", output_index=index, item=item)
        status = _status(whole)
        yield self._event(f"response.{status}", response=self._document(status, output, usage()))

    def _failed(self, piece: Piece, error: ApiError, usage: Document) -> Document:
        """What was written until then, and what went wrong."""
        output = [item | {"status": "incomplete"} for item in self._output(piece)] if piece.says_something else []
        why = {"code": error.code or "server_error", "message": error.message}
        return self._document("failed", output, usage) | {"error": why}

    def _said(self, before: Piece, piece: Piece) -> list[bytes]:
        """Events of one piece."""
        found: list[bytes] = []
        if piece.text:
            found += [] if before.text else self._open_message()
            found.append(self._text_event("output_text.delta", delta=piece.text, logprobs=[]))
        for call in piece.calls:
            if call.id is not None:
                item = _call(call.id, str(call.name), "", "in_progress")
                found.append(self._event("response.output_item.added", output_index=call.index, item=item))
            more = {"item_id": self._item_of(call.index, before, piece), "output_index": call.index}
            if call.arguments:
                found.append(self._event("response.function_call_arguments.delta", delta=call.arguments, **more))
        return found

    @staticmethod
    def _item_of(index: int, before: Piece, piece: Piece) -> str:
        ids = [call.id for call in (*before.calls, *piece.calls) if call.id is not None]
        return f"fc_{ids[index]}"

    def _open_message(self) -> list[bytes]:
        item = self._message_item([], "in_progress")
        added = self._event("response.output_item.added", output_index=0, item=item)
        return [added, self._text_event("content_part.added", part=_text(""))]

    def _text_event(self, name: str, **more: Any) -> bytes:
        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        extra: Document = {"logprobs": []} if name == "output_text.done" else {}
        return self._event(f"response.{name}", **place, **extra, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

    def _output(self, piece: Piece) -> list[Document]:
        if piece.calls:
            calls = whole_calls(piece.calls)
            made = [_call(c["id"], c["function"]["name"], c["function"]["arguments"], "completed") for c in calls]
            return [*made[:-1], made[-1] | {"status": _status(piece)}]  # an answer may end within its last call
        return [self._message_item([_text(piece.text)], _status(piece))]

    def _message_item(self, content: list[Document], status: str) -> Document:
        return {
            "id": self._message,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _document(self, status: str, output: list[Document], usage: Document | None) -> Document:
        body = self._body
        choice: Any = body.tool_choice or "auto"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._born,
            "model": body.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}} if body.text is None else body.text.model_dump(by_alias=True),
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
        }


def _status(piece: Piece) -> str:
    return "incomplete" if piece.finish_reason == "length" else "completed"


def _text(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(name: str, function: str, arguments: str, status: str) -> Document:
    item = {"id": f"fc_{name}", "type": "function_call", "call_id": name, "name": function}
    return item | {"arguments": arguments, "status": status}


def _usage(usage: Document) -> Document:
    """The same counts under the names of this API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
        "speculation": usage["speculation"],
    }
