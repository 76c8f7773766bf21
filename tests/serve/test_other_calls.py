"""Responses, tokens, names of requests and fingerprints: the calls beside chat and completions."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from foredraft.serve.api.api_errors import ApiError
from foredraft.serve.api.body import parse
from foredraft.serve.api.responses_body import ResponsesBody
from foredraft.serve.api.schema import MAX_MESSAGES

from .kit import MODEL, Running


@pytest.fixture
def client(server: Running) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_response_and_its_stream(client: openai.OpenAI, server: Running) -> None:
    asked: Any = {"model": MODEL, "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 6, "temperature": 0}
    whole = client.responses.create(**asked)
    chat = server.post(
        "chat/completions", max_tokens=6, temperature=0,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    ).json()  # fmt: skip
    assert whole.output_text == chat["choices"][0]["message"]["content"]
    assert whole.status == "incomplete" and whole.usage.output_tokens == 6
    events = list(client.responses.create(**asked, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert [e.type for e in events][:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == whole.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))


TOOL = {"type": "function", "name": "f", "parameters": {
    "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False,
}}  # fmt: skip


def test_calls_of_a_response(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "x", "tools": [TOOL], "tool_choice": "required", "temperature": 0}
    asked |= {"parallel_tool_calls": False, "max_output_tokens": 30}
    call = client.responses.create(**asked).output[0]
    assert call.type == "function_call" and call.name == "f" and json.loads(call.arguments)["x"] in (1, 2)
    events = list(client.responses.create(**asked, stream=True))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    done = events[-1].response.output[0]
    assert done.arguments == call.arguments and done.call_id.startswith("call_")


def test_a_call_that_was_cut_short_says_so(roomy: Running) -> None:
    parameters = {"type": "object", "properties": {"x": {"enum": ["word " * 60]}}, "required": ["x"]}
    tool: Any = {"type": "function", "name": "f", "parameters": parameters | {"additionalProperties": False}}
    asked = {"input": "Go", "tools": [tool], "tool_choice": "required", "max_output_tokens": 40}
    whole = roomy.post("responses", **asked).json()
    assert whole["status"] == "incomplete" and whole["output"][-1]["type"] == "function_call"
    assert whole["output"][-1]["status"] == "incomplete"


def test_a_response_holds_to_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    text = client.responses.create(model=MODEL, input="x", text=form, max_output_tokens=40).output_text  # type: ignore[call-overload]
    assert json.loads(text) == {"a": "b"}


def test_calls_of_one_answer_are_one_message() -> None:
    def call(name: str) -> dict[str, str]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    result = {"type": "function_call_output", "call_id": "a", "output": "r"}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "hm"}, call("a"), call("b"), result]
    body = ResponsesBody.model_validate({"model": MODEL, "input": [*history, call("c")]})
    found = body.as_chat().messages
    assert [message.role for message in found] == ["user", "assistant", "tool", "assistant"] and found[
        1
    ].content == "hm"
    assert [[each.id for each in message.tool_calls or ()] for message in found] == [[], ["a", "b"], [], ["c"]]


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_1"},
        {"input": []},
        {"input": [{"role": "judge", "content": "x"}]},
        {"background": True},
        {"top_logprobs": 2},
        {"include": ["message.output_text.logprobs"]},
    ],
)
def test_responses_refuse_what_they_cannot_do(server: Running, more: dict[str, Any]) -> None:
    response = server.post("responses", **{"input": "x", "max_output_tokens": 1} | more)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_more_messages_than_a_chat_holds_are_refused() -> None:
    many = json.dumps({"model": MODEL, "instructions": "y", "input": [{"role": "user", "content": "x"}] * MAX_MESSAGES})
    with pytest.raises(ApiError) as caught:
        parse(ResponsesBody, many.encode(), 1 << 24)
    assert caught.value.status == 400 and caught.value.param == "input"


def test_tokens_there_and_back(server: Running) -> None:
    text = "Grüße, world!"
    found = server.client.post("/tokenize", json={"prompt": text}).json()
    assert found["tokens"] == server.llm.tokenizer.encode(text) and found["count"] == len(found["tokens"])
    assert found["max_model_len"] == server.llm.engine.executor.max_length
    assert server.client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}
    messages = [{"role": "user", "content": "Hi"}]
    chat = server.client.post("/tokenize", json={"messages": messages, "model": MODEL}).json()
    assert chat["tokens"] == server.llm.tokenizer.encode_chat(messages)


DIALOGUE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "more",
    [
        {"add_generation_prompt": False},
        {"messages": DIALOGUE, "continue_final_message": True},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"chat_template_kwargs": {"messages_end": "x"}},
    ],
    ids=lambda more: list(more)[-1],
)
def test_tokens_of_a_chat_are_those_that_it_is_answered_from(roomy: Running, more: dict[str, Any]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | more
    count = roomy.client.post("/tokenize", json=body).json()["count"]
    assert roomy.post("chat/completions", **body, max_tokens=1).json()["usage"]["prompt_tokens"] == count


def test_a_chat_is_rendered_as_the_caller_says(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = server.llm.tokenizer
    template = "{{ messages[0]['content'] }}{% if thinking %} hm{% endif %}{% if add_generation_prompt %} >{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    monkeypatch.setattr(tokenizer, "_template", tokenizer._templates.from_string(template), raising=False)

    def ids(**more: Any) -> str:
        body = {"messages": [{"role": "user", "content": "Hi"}]} | more
        return tokenizer.decode(server.client.post("/tokenize", json=body).json()["tokens"])

    assert ids() == "Hi >" and ids(add_generation_prompt=False) == "Hi"
    assert ids(chat_template_kwargs={"thinking": True}) == "Hi hm >"
    wrong = {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"messages": []}, "max_tokens": 1}
    assert server.post("chat/completions", **wrong).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/tokenize", {"prompt": "word " * 20000}, 400),
        ("/detokenize", {"tokens": [1 << 40]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
    ],
)
def test_tokens_refuse(server: Running, path: str, body: dict[str, Any], status: int) -> None:
    assert server.client.post(path, json=body).status_code == status


def test_replies_have_names(server: Running) -> None:
    given = server.client.get("/health", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    new = [
        server.client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        for bad in ("", "a b", "x" * 200)
    ]
    assert all(name.startswith("req_") for name in new) and len(set(new)) == 3
    refused = server.post("chat/completions", messages=[])
    assert refused.status_code == 400 and refused.headers["x-request-id"].startswith("req_")


def test_answers_tell_what_wrote_them_and_what_was_read_before(server: Running) -> None:
    prompt = "A prompt that is long enough to be kept for another one, word by word by word"
    first, second = (server.post("completions", prompt=prompt, max_tokens=1, seed=1).json() for _ in range(2))
    assert first["system_fingerprint"] == second["system_fingerprint"] and first["system_fingerprint"].startswith("fp_")
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 4
    several = server.post("completions", prompt=prompt, max_tokens=1, n=3).json()["usage"]
    again = server.post("completions", prompt=prompt, max_tokens=1, n=3).json()["usage"]
    for usage in (several, again):  # a prompt counts once, however many choices it has
        assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
