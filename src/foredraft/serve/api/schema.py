"""Request bodies of the API. Types are strict, fields that nobody knows are ignored, as OpenAI does.

A wrong body must be cheap to refuse: every list stops at its first error and has a longest length.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

MAX_INT = (1 << 63) - 1
MAX_STOPS, MAX_STOP_CHARS = 16, 1024
MAX_PROMPTS, MAX_MESSAGES = 1024, 16384
Text = Annotated[str, Field(max_length=MAX_STOP_CHARS)]


def check_bias(value: Any) -> Any:
    """Complain about the first wrong entry; the type alone would complain about each."""
    for token, bias in value.items() if isinstance(value, dict) else ():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise ValueError(f"{token[:20]!r} is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token} is not a number from -100 to 100")
    return value


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


def refuse(value: Any) -> None:
    if value:
        raise ValueError("this server does not support it; leave it out")


def refuse_special(value: Any) -> None:
    if value is False:
        raise ValueError("this server leaves special tokens out of texts; see return_token_ids")


def refuse_modalities(value: Any) -> None:
    if value not in (None, ["text"]):
        raise ValueError("this server writes text alone")


Unsupported = Annotated[Any, AfterValidator(refuse)]


MAX_GRAMMAR, MAX_TOOLS = 1 << 16, 128
Expression = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]
Choices = Annotated[list[Expression], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]


class StructuredOutputs(Body):
    """vLLM's field."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: Expression | None = None
    choice: Choices | None = None
    grammar: Expression | None = None
    structural_tag: Unsupported = None


class UnsupportedFields(Body):
    """Fields of other servers that would change the text: to ignore them in silence would be a wrong answer."""

    grammar: Unsupported = None
    structural_tag: Unsupported = None
    logits_processors: Unsupported = None
    bad_words: Unsupported = None
    allowed_token_ids: Unsupported = None
    use_beam_search: Unsupported = None
    truncate_prompt_tokens: Unsupported = None
    prompt_logprobs: Unsupported = None
    include_stop_str_in_output: Unsupported = None
    chat_template: Unsupported = None
    documents: Unsupported = None
    return_tokens_as_token_ids: Unsupported = None
    skip_special_tokens: Annotated[Any, AfterValidator(refuse_special)] = None
    audio: Unsupported = None
    modalities: Annotated[Any, AfterValidator(refuse_modalities)] = None


class TextPart(Body):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def only_text(cls, part: Any) -> Any:
        """One complaint about an image, in place of one for each field that it lacks."""
        if isinstance(part, dict) and part.get("type") in ("image_url", "input_audio", "file"):
            raise ValueError(f"this server reads text only, no {part['type']}")
        return part


Content = str | Annotated[list[TextPart], Field(fail_fast=True)]


def text_of(content: Content | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


class Prediction(Body):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: Content


class Generation(UnsupportedFields):
    """What chat and completions have in common."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INT, description="0 or -1 = all tokens.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(check_bias)] | None = (
        None
    )
    seed: int | None = Field(default=None, ge=-MAX_INT - 1, le=MAX_INT)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    min_tokens: int | None = Field(default=None, ge=0, le=MAX_INT, description="No end of the text before so many.")
    stop: Text | Annotated[list[Text], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True, max_length=MAX_PROMPTS)] | None = None
    ignore_eos: bool | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | None = Field(default=None, description="A schema, as in response_format.")
    guided_regex: Expression | None = Field(default=None, description="An expression that the whole text matches.")
    guided_choice: Choices | None = Field(default=None, description="The text is one of these.")
    guided_grammar: Expression | None = Field(default=None, description="A grammar in the Lark form of llguidance.")
    structured_outputs: StructuredOutputs | None = None
    prediction: Prediction | None = Field(default=None, description="The text that is expected: drafts from it.")
    speculation: Speculation | None = None
    cache_salt: str | None = Field(
        default=None, min_length=1, max_length=256, description="Share texts and prefixes within this name alone."
    )
    add_special_tokens: bool | None = Field(
        default=None, description="Begin as the model expects it (default: completions; templates do so themselves)."
    )
    return_token_ids: bool | None = Field(default=None, description="Tell the ids of the tokens too, as in vLLM.")

    @property
    def prompt_alternatives(self) -> int | None:
        """Rivals to report beside the log-probability of each token of the prompt; None = none of it."""
        return None


Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class Function(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: Name


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(Body):
    name: str
    arguments: str


class ToolCall(Body):
    """A call in the history of a conversation."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates expect it; `developer` is the newer name of `system`."""
        return {"role": "system" if self.role == "developer" else self.role, "content": text_of(self.content)}


class ChatBody(Generation):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    continue_final_message: bool | None = Field(default=None, description="Write on in the last message.")
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables of the chat template.")
    echo: Unsupported = None

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Rivals to report beside each token's own log-probability; None = none of it."""
        return (self.top_logprobs or 0) if self.logprobs else None


Ids = Annotated[list[int], Field(fail_fast=True, min_length=1)]
Several = Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)
Prompts = str | Ids | Annotated[list[str], Several] | Annotated[list[Ids], Several]  # one or several


class CompletionBody(Generation):
    """POST /v1/completions"""

    prompt: Prompts
    max_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)  # 0: the prompt alone, by echo
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = Field(default=None, ge=1, le=128)
    tools: Unsupported = None
    tool_choice: Unsupported = None

    @field_validator("suffix")
    @classmethod
    def no_suffix(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("this server does not fill in the middle")
        return value

    @property
    def new_tokens(self) -> int | None:
        return 16 if self.max_tokens is None else max(self.max_tokens, 1)  # 16 is OpenAI's default here

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        return self.logprobs if self.echo else None
