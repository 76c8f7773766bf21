"""The body of OpenAI's Responses API, and the chat that it stands for. Nothing is stored between calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from .schema import (
    MAX_INT,
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    ChatBody,
    Name,
    Speculation,
    Unsupported,
)

Document = dict[str, Any]
SCORES = "message.output_text.logprobs"


class InputText(Body):
    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(Body):
    """A message of the conversation; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText], Field(fail_fast=True)]


class InputCall(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputResult(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: str


class FlatTool(Body):
    """A tool as the Responses API writes it."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Body):
    type: Literal["function"]
    name: Name


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    definition: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(Body):
    format: TextFormat | None = None


def refuse_scores(value: Any) -> None:
    if isinstance(value, list) and SCORES in value:
        raise ValueError("this server tells log-probabilities of chat and completions alone")


class ResponsesBody(Body):
    """POST /v1/responses"""

    model: str
    input: (
        str
        | Annotated[
            list[InputMessage | InputCall | InputResult],
            Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES - 1),  # instructions are a message too
        ]
    )
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FlatTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    speculation: Speculation | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)
    previous_response_id: Unsupported = None
    conversation: Unsupported = None
    background: Unsupported = None
    prompt: Unsupported = None
    top_logprobs: Unsupported = None
    include: Annotated[Any, AfterValidator(refuse_scores)] = None

    def as_chat(self) -> ResponsesChat:
        """The same as a chat."""
        given: Document = {"model": self.model, "messages": self._messages(), "max_tokens": self.max_output_tokens}
        for name in ("temperature", "top_p", "stream", "parallel_tool_calls", "cache_salt"):
            given[name] = getattr(self, name)
        given["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in self.tools or ()
        ] or None
        choice = self.tool_choice
        given["tool_choice"] = (
            {"type": "function", "function": {"name": choice.name}} if isinstance(choice, FlatChoice) else choice
        )
        form = self.text.format if self.text is not None else None
        if form is not None:
            schema = None if form.definition is None else {"name": form.name, "schema": form.definition}
            given["response_format"] = {"type": form.type, "json_schema": schema}
        chat = ResponsesChat.model_validate(given)
        chat.speculation, chat._asked = self.speculation, self
        return chat

    def _messages(self) -> list[Document]:
        first = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if isinstance(self.input, str):
            return [*first, {"role": "user", "content": self.input}]
        return [*first, *_joined(self.input)]


class ResponsesChat(ChatBody):
    """A chat that is to be answered as the Responses API answers."""

    _asked: ResponsesBody = PrivateAttr()

    @property
    def asked(self) -> ResponsesBody:
        return self._asked


def _joined(items: list[InputMessage | InputCall | InputResult]) -> list[Document]:
    """Messages; what an assistant says and calls in one answer is one message, as in a chat."""
    found: list[Document] = []
    for item in items:
        message = _message(item)
        if isinstance(item, InputCall) and found and found[-1]["role"] == "assistant":
            found[-1]["tool_calls"] = found[-1].get("tool_calls", []) + message["tool_calls"]
        else:
            found.append(message)
    return found


def _message(item: InputMessage | InputCall | InputResult) -> Document:
    if isinstance(item, InputCall):
        function = {"name": item.name, "arguments": item.arguments}
        return {"role": "assistant", "tool_calls": [{"id": item.call_id, "type": "function", "function": function}]}
    if isinstance(item, InputResult):
        return {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
    text = item.content if isinstance(item.content, str) else "".join(part.text for part in item.content)
    return {"role": item.role, "content": text}
