"""Request bodies of the API. Types are strict, fields that nobody knows are ignored, as OpenAI does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_INT = (1 << 63) - 1


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Speculation(Body):
    """How this request is to be sped up, within what the operator allows. Our own field."""

    method: str | None = None
    draft_length: int | None = Field(default=None, ge=1, le=1024, description="Most tokens to draft ahead.")
    rule: str | None = Field(default=None, description="Verification rule.")
    threshold: float | None = Field(default=None, description="The rule's first parameter; a judge's is in [0, 1].")
    off: bool | None = Field(default=None, description="Plain decoding.")
    trace: bool | None = Field(default=None, description="Tell who wrote each token, and what was drafted.")


class StreamOptions(Body):
    include_usage: bool | None = None


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    definition: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """Text, any JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Generation(Body):
    """What chat and completions have in common."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INT, description="0 or -1 = all tokens.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(default=None, ge=-MAX_INT - 1, le=MAX_INT)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    speculation: Speculation | None = None
    return_token_ids: bool | None = Field(default=None, description="Tell the ids of the tokens too, as in vLLM.")


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates expect it; `developer` is the newer name of `system`."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(Generation):
    """POST /v1/chat/completions"""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[Any] | None = None
    functions: list[Any] | None = None

    @field_validator("tools", "functions")
    @classmethod
    def no_tools(cls, value: list[Any] | None) -> list[Any] | None:
        if value:
            raise ValueError("this server does not call tools")
        return value

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Rivals to report beside each token's own log-probability; None = none of it."""
        return (self.top_logprobs or 0) if self.logprobs else None


Ids = Annotated[list[int], Field(min_length=1)]


class CompletionBody(Generation):
    """POST /v1/completions"""

    prompt: str | Ids | Annotated[list[str] | list[Ids], Field(min_length=1)]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = Field(default=None, ge=1, le=128)

    @field_validator("suffix")
    @classmethod
    def no_suffix(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("this server does not fill in the middle")
        return value

    @property
    def new_tokens(self) -> int | None:
        return self.max_tokens or 16  # OpenAI's default here

    @property
    def alternatives(self) -> int | None:
        return self.logprobs
