"""Tools, structure and drafts that come with a request: through the official client, on a tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from foredraft.serve.api.tools import CallDelta, CallParser, whole_calls

from .kit import MODEL, Running

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
ASK: list[Any] = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture
def running(roomy: Running) -> Running:
    return roomy


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def call(client: openai.OpenAI, **more: Any) -> Any:
    given: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 60, "temperature": 0}
    return client.chat.completions.create(**given | more)


def check(tool: Any) -> None:
    assert tool.type == "function" and tool.id.startswith("call_")
    if tool.function.name == "time":
        assert json.loads(tool.function.arguments) == {}
    else:
        arguments = json.loads(tool.function.arguments)
        assert tool.function.name == "weather" and set(arguments) == {"city", "days"}
        assert arguments["city"] in ("Rome", "Oslo") and arguments["days"] in (1, 2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_come_fits_its_schema(client: openai.OpenAI, choice: Any) -> None:
    answer = call(client, tools=[WEATHER, TIME], tool_choice=choice, parallel_tool_calls=False)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and message.content is None
    assert len(message.tool_calls) == 1
    check(message.tool_calls[0])
    if not isinstance(choice, str):
        assert message.tool_calls[0].function.name == "weather"


def test_a_tool_that_is_named_is_called_once(client: openai.OpenAI) -> None:
    """Several calls may come where any tool is asked for: this tiny model, which writes at random, makes some."""
    named = {"type": "function", "function": {"name": "weather"}}

    def counts(choice: Any) -> list[int]:
        asked = {"tools": [WEATHER], "tool_choice": choice, "temperature": 1.5}
        answers = [call(client, **asked, seed=seed) for seed in range(12)]
        return [len(answer.choices[0].message.tool_calls) for answer in answers]

    many, once = counts("required"), counts(named)
    assert max(many) > 1 and set(once) == {1}


def test_forced_text_is_drafted_and_counted_apart(client: openai.OpenAI) -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    drafted, plain = (
        call(client, **asked, extra_body={"speculation": {"off": off}, "return_token_ids": True})
        for off in (False, True)
    )
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    assert drafted.usage.speculation["forced"] > 8 and plain.usage.speculation["forced"] == 0
    assert drafted.usage.speculation["steps"] < plain.usage.speculation["steps"] / 2


def test_a_stream_of_calls_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"tools": [WEATHER, TIME], "tool_choice": "required", "seed": 3, "temperature": 1}
    whole = call(client, **asked).choices[0]
    found: dict[int, dict[str, str]] = {}
    reason = None
    for chunk in call(client, **asked, stream=True):
        choice = chunk.choices[0]
        assert not choice.delta.content
        for delta in choice.delta.tool_calls or ():
            if delta.id:
                found[delta.index] = {"name": delta.function.name, "arguments": ""}
            found[delta.index]["arguments"] += delta.function.arguments
        reason = choice.finish_reason or reason
    expected = [{"name": c.function.name, "arguments": c.function.arguments} for c in whole.message.tool_calls]
    assert list(found.values()) == expected and reason == whole.finish_reason
    if reason == "tool_calls":
        for tool in whole.message.tool_calls:
            check(tool)


def test_schemas_of_tools_may_refer_to_themselves(client: openai.OpenAI) -> None:
    """As pydantic writes them: definitions stand at the root of the parameters, which is not that of the grammar."""

    class Sky(BaseModel):
        state: Literal["sun", "rain"]

    class Report(BaseModel):
        sky: Sky
        older: list[Report] = Field(max_length=0)

    tool = openai.pydantic_function_tool(Report)
    answer = call(client, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    written = answer.choices[0].message.tool_calls[0].function
    assert written.name == "Report" and Report.model_validate_json(written.arguments).older == []


def test_auto_writes_text_or_calls_and_none_never_calls(client: openai.OpenAI) -> None:
    free = call(client, tools=[WEATHER], max_tokens=8).choices[0].message
    assert free.content and not free.tool_calls  # random weights write no call by themselves
    assert call(client, tools=[WEATHER], tool_choice="none", max_tokens=4).choices[0].message.content


def test_calls_in_the_history_reach_the_model(running: Running, client: openai.OpenAI) -> None:
    history = [
        *ASK,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "snow"},
    ]
    without = call(client, messages=[ASK[0], history[2]], max_tokens=1).usage.prompt_tokens
    assert call(client, messages=history, max_tokens=1).usage.prompt_tokens > without + 10
    assert running.service.ready().tokenizer.chat_template is not None


@pytest.mark.parametrize("arguments", ["[" * 200_000, '{"half of a character": "\\ud83d"}'])
def test_arguments_in_the_history_that_cannot_be_written_stay_as_they_are(running: Running, arguments: str) -> None:
    """The first is too long for the context as well, and is refused for that."""
    function = {"name": "weather", "arguments": arguments}
    history = [*ASK, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}]
    answer = running.post("chat/completions", messages=history, max_tokens=1)
    if len(arguments) < 100:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "blamed"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "bad name"}}]}, "tools.0.function.name"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "("}, None),
        ({"structural_tag": {"x": 1}}, "structural_tag"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(running: Running, body: dict[str, Any], blamed: str | None) -> None:
    response = running.post("chat/completions", messages=ASK, max_tokens=4, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == blamed


@pytest.mark.parametrize(
    ("form", "expression"),
    [
        ({"guided_regex": "[0-9]{3}-[ab]{2}"}, r"\d{3}-[ab]{2}"),
        ({"guided_choice": ["red", 'a "quoted" one']}, 'red|a "quoted" one'),
        ({"guided_grammar": 'start: "x" ("y" | "z")\n'}, "x[yz]"),
        ({"structured_outputs": {"regex": "(ab){2}"}}, "abab"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
    ],
)
def test_other_forms_than_json(running: Running, form: dict[str, Any], expression: str) -> None:
    for route, prompt in (("chat/completions", {"messages": ASK}), ("completions", {"prompt": "Say"})):
        answer = running.post(route, **prompt, max_tokens=40, temperature=1, seed=1, **form)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        assert re.fullmatch(expression, text) and choice["finish_reason"] == "stop"


def test_parse_gives_an_object(client: openai.OpenAI) -> None:
    class Place(BaseModel):
        north: bool
        letter: Literal["a", "b"]

    asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 60, "temperature": 0}
    parsed = client.chat.completions.parse(**asked, response_format=Place).choices[0].message.parsed
    assert isinstance(parsed, Place)


def test_a_prediction_is_drafted_from(running: Running, client: openai.OpenAI) -> None:
    first = call(client, max_tokens=40, extra_body={"return_token_ids": True, "speculation": {"off": True}})
    text = first.choices[0].message.content
    asked = {"max_tokens": 40, "prediction": {"type": "content", "content": text}}
    second = call(client, **asked, extra_body={"return_token_ids": True, "speculation": {"method": "prompt-lookup"}})
    assert second.choices[0].token_ids == first.choices[0].token_ids
    details = second.usage.completion_tokens_details
    predicted = running.llm.tokenizer.encode(text, add_special=False)
    if predicted == first.choices[0].token_ids:  # the text is cut into the same tokens again
        assert details.accepted_prediction_tokens > 20
    wrong = call(client, max_tokens=8, prediction={"type": "content", "content": "something else entirely"})
    assert wrong.usage.completion_tokens_details.rejected_prediction_tokens > 0


@pytest.mark.parametrize("said", ["It is", "<", "|", "d", "assistant", "So: "])
def test_a_last_message_is_continued(running: Running, said: str) -> None:
    """Also where the template writes the same characters after it."""
    started = [*ASK, {"role": "assistant", "content": said}]
    answer = running.post(
        "chat/completions", messages=started, max_tokens=3, continue_final_message=True, add_generation_prompt=False
    )
    fresh = running.post("chat/completions", messages=ASK, max_tokens=3)
    more = len(running.llm.tokenizer.encode(said, add_special=False))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == fresh.json()["usage"]["prompt_tokens"] + more


TEXT = (
    '<tool_call>{"name": "a", "arguments": {"x": "}{\\"\\\\", "y": [{}]}}</tool_call>\n'
    '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_found_however_the_text_is_cut(size: int) -> None:
    parser, deltas = CallParser(), list[CallDelta]()
    for i in range(0, len(TEXT), size):
        said, found = parser.push(TEXT[i : i + size], i + size >= len(TEXT))
        assert said == ""
        deltas += found
    calls = [call["function"] for call in whole_calls(deltas)]
    assert calls == [{"name": "a", "arguments": '{"x": "}{\\"\\\\", "y": [{}]}'}, {"name": "b", "arguments": "{}"}]


def test_a_tool_may_be_called_arguments() -> None:
    _, deltas = CallParser().push('<tool_call>{"name": "arguments", "arguments": {"x": 1}}</tool_call>', True)
    assert [each["function"] for each in whole_calls(deltas)] == [{"name": "arguments", "arguments": '{"x": 1}'}]


@pytest.mark.parametrize("text", ["<b>bold</b>", "plain", "<tool", "<"])
def test_other_texts_stay_texts(text: str) -> None:
    parser = CallParser()
    pieces = [parser.push(char, i == len(text) - 1) for i, char in enumerate(text)]
    assert "".join(said for said, _ in pieces) == text and not any(found for _, found in pieces)
