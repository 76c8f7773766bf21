"""The ways in which the official client's guides use it, against a real server on a tiny model: tools, parse, streams,
responses, embeddings. What the helpers of the client make of our replies is what is tested.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from .kit import MODEL, Running


class Step(BaseModel):
    kind: Literal["add", "stop"]
    last: bool


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]


ASK: Any = [{"role": "user", "content": "How is the weather?"}]
TOOL: Any = openai.pydantic_function_tool(Weather)


@pytest.fixture(scope="module")
def client(roomy: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{roomy.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_loop_over_tool_calls(client: openai.OpenAI) -> None:
    """Call, run the function, send its result, get an answer: the guide to function calling."""
    messages: Any = list(ASK)
    first = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=60,
        parallel_tool_calls=False,
    )  # fmt: skip
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls
    messages.append(message)
    for call in message.tool_calls:
        assert call.type == "function"
        city = json.loads(call.function.arguments)["city"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"rain in {city}"})
    second = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], tool_choice="none", temperature=0, max_tokens=4
    )
    assert second.choices[0].message.content and second.choices[0].message.tool_calls is None


def test_tools_that_the_client_parses(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=60,
        parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_stream_with_its_events(client: openai.OpenAI) -> None:
    """`chat.completions.stream`: deltas add up, and the final object is parsed."""
    text, kinds = "", set()
    asked: Any = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 60, "response_format": Step}
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        for event in stream:
            kinds.add(event.type)
            text += event.delta if event.type == "content.delta" else ""
        whole = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(whole.choices[0].message.parsed, Step) and whole.choices[0].message.content == text
    assert whole.usage is not None and whole.usage.completion_tokens > 0


def test_a_stream_of_tool_calls_with_its_events(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "tools": [TOOL], "tool_choice": "required", "temperature": 0}
    asked |= {"parallel_tool_calls": False, "max_tokens": 60}
    with client.chat.completions.stream(**asked) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    (event,) = done
    assert event.name == "Weather" and isinstance(event.parsed_arguments, Weather)


def test_responses_parsed_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "x", "temperature": 0, "max_output_tokens": 60}
    parsed = client.responses.parse(**asked, text_format=Step)
    assert isinstance(parsed.output_parsed, Step)
    with client.responses.stream(**asked, text_format=Step) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text == parsed.output_text and isinstance(final.output_parsed, Step)


def test_a_response_that_follows_tool_calls(client: openai.OpenAI) -> None:
    """The guide's loop: the output goes back as input, with what the function gave."""
    tool: Any = {"type": "function", "name": "Weather", "parameters": TOOL["function"]["parameters"], "strict": True}
    history: Any = [{"role": "user", "content": "How is the weather?"}]
    asked: Any = {"model": MODEL, "tools": [tool], "temperature": 0, "max_output_tokens": 60}
    first = client.responses.create(**asked, input=history, tool_choice="required", parallel_tool_calls=False)
    history += first.output
    for item in first.output:
        if item.type == "function_call":
            history.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
    last = client.responses.create(**asked | {"max_output_tokens": 4}, input=history, tool_choice="none")
    assert last.output_text and history[-1]["type"] == "function_call_output"


async def _streamed(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        found = []
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=0, max_tokens=5, stream=True
        )
        async for chunk in stream:
            found.append(chunk.choices[0].delta.content or "")
        return found


def test_the_asynchronous_client(roomy: Running, client: openai.OpenAI) -> None:
    pieces = asyncio.run(_streamed(roomy.url))
    whole = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=5)
    assert "".join(pieces) == whole.choices[0].message.content


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.chat.completions.create(model="other", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=9)
