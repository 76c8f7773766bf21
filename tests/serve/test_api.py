"""The API on a tiny model: whole and streamed answers are the engine's own, in the forms that clients expect."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import openai
import pytest

from foredraft import LLM, Completion, SamplingParams

from .kit import MODEL, Running, events

CHAT = [{"role": "user", "content": "Name three rivers, please."}]


@cache
def copy_of(name: str) -> LLM:
    """The engine of a server belongs to its thread, so we need one of our own."""
    return LLM(name, "plain", dtype="fp32", batch_size=4)


def offline(server: Running, prompt: Any, **params: Any) -> Completion:
    """What the same model writes outside the server."""
    llm = copy_of(server.llm.target.name)
    ids = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else llm.tokenizer.encode_chat(prompt)
    return llm.generate([ids], SamplingParams(**params))[0]


def chat(server: Running, **body: Any) -> dict[str, Any]:
    response = server.post("chat/completions", messages=CHAT, **body)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server: Running, path: str, **body: Any) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """A stream put together, choice by choice; and its documents."""
    with server.client.stream("POST", f"/v1/{path}", json={"model": MODEL, "stream": True} | body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        documents = list(events(response))
    whole: dict[int, dict[str, Any]] = {}
    for document in documents:
        for choice in document["choices"]:
            kept = whole.setdefault(choice["index"], {"text": "", "token_ids": [], "logprobs": [], "finish": None})
            kept["text"] += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            kept["token_ids"] += choice.get("token_ids", [])
            scores = choice["logprobs"] or {}
            kept["logprobs"] += scores.get("content", scores.get("token_logprobs", []))
            assert kept["finish"] is None
            kept["finish"] = choice["finish_reason"]
    return whole, documents


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 5, "top_p": 0.9, "top_k": 50}])
def test_answers_are_those_of_the_model_offline(server: Running, sampling: dict[str, Any]) -> None:
    expected = offline(server, CHAT, max_new_tokens=20, **sampling)
    for _ in range(2):  # the second time there are drafts from the first
        choice = chat(server, max_completion_tokens=20, return_token_ids=True, **sampling)["choices"][0]
        assert choice["token_ids"] == expected.token_ids
        assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
        assert choice["finish_reason"] == expected.finish_reason == "length"


def test_other_options_reach_the_sampler(server: Running) -> None:
    """A bias leaves a few tokens in the race, so that penalties show; without any option the text is another."""
    given = {"presence_penalty": 1.5, "frequency_penalty": 1.0, "min_p": 0.4, "repetition_penalty": 1.8, "seed": -3}
    bias = {token: 30.0 for token in range(40, 46)}
    expected = offline(server, "one two", temperature=1.5, max_new_tokens=16, logit_bias=bias, **given)
    body = {"prompt": "one two", "temperature": 1.5, "max_tokens": 16, "return_token_ids": True}
    body |= {"logit_bias": {str(token): value for token, value in bias.items()}} | given

    def ids(**changed: Any) -> list[int]:
        return server.post("completions", **body | changed).json()["choices"][0]["token_ids"]

    assert ids() == expected.token_ids
    for name in (*given, "logit_bias", "temperature"):
        assert ids(**{name: None}) != expected.token_ids, name


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 1, "n": 3},
        {"temperature": 1, "seed": 2, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0, "stop": ["e", "zzz"]},
    ],
    ids=["greedy", "three", "logprobs", "stop"],
)
def test_a_stream_adds_up_to_the_whole(server: Running, options: dict[str, Any]) -> None:
    body = {"messages": CHAT, "max_tokens": 24, "return_token_ids": True} | options
    whole = server.post("chat/completions", **body).json()
    parts, documents = streamed(server, "chat/completions", **body)
    assert len(whole["choices"]) == options.get("n", 1) == len(parts)
    for choice in whole["choices"]:
        part = parts[choice["index"]]
        assert part["text"] == choice["message"]["content"]
        assert part["token_ids"] == choice["token_ids"]
        assert part["finish"] == choice["finish_reason"]
        scores = (choice["logprobs"] or {"content": []})["content"]
        assert [s["token"] for s in part["logprobs"]] == [s["token"] for s in scores]
        values = [[s["logprob"]] + [r["logprob"] for r in s["top_logprobs"]] for s in part["logprobs"]]
        assert values == [
            pytest.approx([s["logprob"]] + [r["logprob"] for r in s["top_logprobs"]], abs=1e-4) for s in scores
        ]
    assert documents[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {d["object"] for d in documents} == {"chat.completion.chunk"}
    assert len({d["id"] for d in documents}) == 1
    assert not any("usage" in d for d in documents)


def test_choices_differ_and_follow_from_the_seed(server: Running) -> None:
    first, again = (chat(server, n=3, seed=7, max_tokens=12)["choices"] for _ in range(2))
    texts = [choice["message"]["content"] for choice in first]
    assert texts == [choice["message"]["content"] for choice in again]
    assert len(set(texts)) == 3
    alone = chat(server, seed=7, max_tokens=12)["choices"][0]["message"]["content"]
    assert alone == texts[0]


def test_completions_with_several_prompts(server: Running) -> None:
    ids = server.llm.tokenizer.encode("x y z")
    both = server.post("completions", prompt=["a b", "x y z"], n=2, temperature=0, max_tokens=5).json()
    assert [c["index"] for c in both["choices"]] == [0, 1, 2, 3]
    texts = [c["text"] for c in both["choices"]]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert both["usage"]["prompt_tokens"] == len(server.llm.tokenizer.encode("a b")) + len(ids)
    assert both["usage"]["completion_tokens"] == 20
    as_ids = server.post("completions", prompt=[ids], temperature=0, max_tokens=5).json()
    assert as_ids["choices"][0]["text"] == texts[2]
    parts, _ = streamed(server, "completions", prompt=["a b", "x y z"], n=2, temperature=0, max_tokens=5)
    assert [parts[i]["text"] for i in range(4)] == texts


def test_echo_and_the_default_length(server: Running) -> None:
    plain = server.post("completions", prompt="a b", temperature=0).json()["choices"][0]["text"]
    echoed = server.post("completions", prompt="a b", temperature=0, echo=True).json()
    assert echoed["choices"][0]["text"] == "a b" + plain
    assert echoed["usage"]["completion_tokens"] == 16
    parts, _ = streamed(server, "completions", prompt="a b", temperature=0, echo=True)
    assert parts[0]["text"] == "a b" + plain


def test_logprobs(server: Running) -> None:
    expected = offline(server, "a b", max_new_tokens=4, logprobs=2)
    body = {"prompt": "a b", "temperature": 0, "max_tokens": 4, "logprobs": 2}
    scores = server.post("completions", **body).json()["choices"][0]["logprobs"]
    assert "".join(scores["tokens"]) == expected.text
    assert scores["text_offset"] == [len("".join(scores["tokens"][:i])) for i in range(4)]
    for i, (token, entry) in enumerate(zip(expected.token_ids, expected.logprobs or [], strict=True)):
        assert scores["token_logprobs"][i] == pytest.approx(entry[token], abs=1e-5)
        assert len(scores["top_logprobs"][i]) == 2
        assert max(scores["top_logprobs"][i].values()) == pytest.approx(entry[token], abs=1e-5)
    content = chat(server, temperature=0, max_tokens=3, logprobs=True, top_logprobs=4)["choices"][0]["logprobs"][
        "content"
    ]
    for entry in content:
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert len(entry["top_logprobs"]) == 4
        assert entry["bytes"] is None or bytes(entry["bytes"]).decode() == entry["token"]
    assert chat(server, max_tokens=2)["choices"][0]["logprobs"] is None


def test_stop_strings_end_before_themselves(server: Running) -> None:
    text = chat(server, temperature=0, max_tokens=30)["choices"][0]["message"]["content"]
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    choice = chat(server, temperature=0, max_tokens=30, stop=stop)["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_usage_tells_speculation(server: Running) -> None:
    body = {"temperature": 0, "max_tokens": 30, "messages": [{"role": "user", "content": "over and over"}]}
    server.post("chat/completions", **body)
    usage = server.post("chat/completions", **body).json()["usage"]  # drafted from the first answer
    reported = usage["speculation"]
    assert reported["method"] == "suffix"
    assert 0 < reported["accepted"] <= reported["drafted"]
    assert reported["steps"] == usage["completion_tokens"] - reported["accepted"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    off = server.post("chat/completions", **body, speculation={"off": True}).json()["usage"]["speculation"]
    plain = {"method": "plain", "rule": "sample-and-match"}
    assert off == plain | {"drafted": 0, "accepted": 0, "judged": 0, "steps": 30, "forced": 0}
    _, documents = streamed(server, "chat/completions", **body, stream_options={"include_usage": True})
    assert documents[-1]["choices"] == []
    assert documents[-1]["usage"]["completion_tokens"] == 30
    assert all(d["usage"] is None for d in documents[:-1])


@pytest.mark.parametrize("wish", [{"method": "prompt-lookup"}, {"draft_length": 1}, {"rule": "one-hot"}], ids=str)
def test_speculation_per_request_leaves_the_text(server: Running, wish: dict[str, Any]) -> None:
    body = {"temperature": 0, "max_tokens": 24, "return_token_ids": True}
    plain = chat(server, **body, speculation={"off": True})["choices"][0]["token_ids"]
    answer = chat(server, **body, speculation=wish)
    assert answer["choices"][0]["token_ids"] == plain
    reported = answer["usage"]["speculation"]
    assert reported["method"] == wish.get("method", "suffix")
    assert reported["rule"] == wish.get("rule", "sample-and-match")
    if "draft_length" in wish:
        assert reported["drafted"] <= reported["steps"]


def test_unknown_fields_are_ignored(server: Running) -> None:
    answer = chat(server, temperature=0, max_tokens=3, user="me", metadata={"a": 1}, no_such_field=[1, {}], store=None)
    assert answer["usage"]["completion_tokens"] == 3


def test_json_output(server: Running) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}}}
    schema |= {"required": ["ok", "n"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for speculation in ({"off": True}, {"method": "suffix"}, {"method": "suffix"}):
        answer = chat(server, temperature=0, max_tokens=60, response_format=wanted, speculation=speculation)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        document = json.loads(choice["message"]["content"])
        assert list(document) == ["ok", "n"]
        assert document["n"] in (1, 22, 333)
    assert answer["usage"]["speculation"]["accepted"] > 0
    text = chat(server, max_tokens=4, response_format={"type": "text"})
    assert text["choices"][0]["finish_reason"] == "length"
    anything = chat(server, max_tokens=4, response_format={"type": "json_object"})
    assert anything["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_content_parts_and_roles(server: Running) -> None:
    parts = [{"type": "text", "text": "Name three "}, {"type": "text", "text": "rivers, please."}]
    split = server.post("chat/completions", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=8)
    assert split.json()["choices"][0]["message"] == chat(server, temperature=0, max_tokens=8)["choices"][0]["message"]
    said = [{"role": "developer", "content": "Be brief."}, *CHAT, {"role": "assistant", "content": None}, *CHAT]
    same = [{"role": "system", "content": "Be brief."}, *CHAT, {"role": "assistant", "content": ""}, *CHAT]
    first, second = (
        server.post("chat/completions", messages=m, temperature=0, max_tokens=8).json() for m in (said, same)
    )
    assert first["choices"] == second["choices"]


def test_the_official_client(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "foredraft"
    asked: dict[str, Any] = {"model": MODEL, "messages": CHAT, "temperature": 0, "max_completion_tokens": 16}
    whole = client.chat.completions.create(**asked, extra_body={"speculation": {"method": "suffix"}})
    assert whole.usage is not None
    assert whole.usage.model_extra is not None
    assert whole.usage.model_extra["speculation"]["method"] == "suffix"
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16
    old = client.completions.create(model=MODEL, prompt="a b", max_tokens=4, logprobs=1, temperature=0)
    assert old.choices[0].logprobs is not None
    assert len(old.choices[0].logprobs.tokens or []) == 4
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**asked | {"temperature": 3})


def test_sixteen_clients_at_once(server: Running) -> None:
    """More than there are slots; everyone gets what they would have got alone."""
    asked = [[{"role": "user", "content": f"Tell me about the number {n}."}] for n in range(16)]
    expected = [offline(server, messages, max_new_tokens=20).token_ids for messages in asked[:4]]

    def ask(n: int) -> list[int]:
        body = {"messages": asked[n], "temperature": 0, "max_tokens": 20, "return_token_ids": True}
        parts, _ = streamed(server, "chat/completions", **body)
        return parts[0]["token_ids"]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    assert together[:4] == expected
    assert together == [ask(n) for n in range(16)]


def test_suggestions_are_several_and_leave_nothing_behind(server: Running) -> None:
    """Superposed decoding between two steps: k different continuations; answers before and after are the same."""
    ask = {"model": MODEL, "prompt": "one two three", "temperature": 0, "max_tokens": 12}
    before = server.client.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    body = {"model": MODEL, "prompt": "The sky is", "k": 4, "max_tokens": 6}
    found = server.client.post("/v1/suggestions", json=body)
    assert found.status_code == 200, found.text
    choices = found.json()["choices"]
    assert len(choices) == len({choice["text"] for choice in choices}) == 4
    assert [choice["score"] for choice in choices] == sorted((choice["score"] for choice in choices), reverse=True)
    assert server.client.post("/v1/suggestions", json=body).json()["choices"] == choices
    assert server.client.post("/v1/suggestions", json=body | {"prompt": "word " * 900}).status_code == 200
    assert server.client.post("/v1/completions", json=ask).json()["choices"][0]["text"] == before
    for wrong in ({"k": 9}, {"prompt": ""}, {"max_tokens": 99}, {"model": "other"}, {"prompt": 3}):
        assert server.client.post("/v1/suggestions", json=body | wrong).status_code in (400, 404)
