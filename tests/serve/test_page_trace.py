"""What the page is made of: traces in the API's answers, the document of choices, and the page's own files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from foredraft.serve.page import static

from .kit import MODEL, Running, events, serving, tiny_llm

CHAT = [{"role": "user", "content": "one two one two one"}]
# A few tokens in the race, so that drafts are often right and often wrong.
LIVELY = {"temperature": 1.5, "seed": 3, "logit_bias": {str(token): 40.0 for token in range(40, 44)}, "max_tokens": 60}


def stream(server: Running, **body: Any) -> list[dict[str, Any]]:
    given = {"model": MODEL, "messages": CHAT, "stream": True, "stream_options": {"include_usage": True}} | body
    with server.client.stream("POST", "/v1/chat/completions", json=given) as response:
        assert response.status_code == 200
        return list(events(response))


def traced(server: Running, **body: Any) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    """The steps, the text and the figures of a streamed answer."""
    *chunks, last = stream(server, speculation={"trace": True, "method": "prompt-lookup"}, **body)
    choices = [chunk["choices"][0] for chunk in chunks]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    return [step for choice in choices for step in choice["speculation"]], text, last["usage"]


@pytest.fixture(scope="module")
def lively(server: Running) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    return traced(server, **LIVELY)


def test_a_trace_tells_the_whole_answer(lively: tuple[list[dict[str, Any]], str, dict[str, Any]]) -> None:
    steps, text, usage = lively
    tokens = [token for step in steps for token in step["tokens"]]
    assert "".join(token["text"] for token in tokens) == text
    assert len(tokens) == usage["completion_tokens"] == 60
    assert len(steps) == usage["speculation"]["steps"]
    assert sum(len(step["tree"]) for step in steps) == usage["speculation"]["drafted"]
    accepted = [token for token in tokens if token["reason"] == "standard"]
    assert len(accepted) == usage["speculation"]["accepted"]
    assert {token["reason"] for token in tokens} >= {"standard", "corrected", "target"}


def test_a_tree_shows_what_was_accepted_and_what_was_turned_down(
    lively: tuple[list[dict[str, Any]], str, dict[str, Any]],
) -> None:
    for step in lively[0]:
        path = [index for index, node in enumerate(step["tree"]) if node["accepted"]]
        assert [step["tree"][index]["text"] for index in path] == [t["text"] for t in step["tokens"][: len(path)]]
        assert [step["tree"][index]["parent"] for index in path] == [-1, *path][: len(path)]
        for token in step["tokens"]:
            if token["reason"] != "corrected":
                assert token["rejected"] == []
        last = step["tokens"][-1]
        if last["reason"] == "corrected":
            end = path[-1] if path else -1
            beside = [node["text"] for node in step["tree"] if node["parent"] == end]
            assert last["rejected"] == beside
            assert beside
            assert last["text"] not in beside
        if not step["tree"]:
            assert [token["reason"] for token in step["tokens"]] == ["target"]


def test_ranks_and_probabilities_are_those_of_the_raw_distribution(server: Running) -> None:
    """They agree with the log-probabilities that the API gives anyway, and a bias does not bend them."""
    body = LIVELY | {"logprobs": True, "top_logprobs": 20, "stream": False, "speculation": {"trace": True}}
    choice = server.post("chat/completions", messages=CHAT, **body).json()["choices"][0]
    tokens = [token for step in choice["speculation"] for token in step["tokens"]]
    scores = choice["logprobs"]["content"]
    assert len(tokens) == len(scores) == 60
    for token, score in zip(tokens, scores, strict=True):
        assert token["probability"] == pytest.approx(math.exp(score["logprob"]), rel=1e-4)
        better = sum(rival["logprob"] > score["logprob"] for rival in score["top_logprobs"])
        assert token["rank"] == better + 1 if better < 20 else token["rank"] > 20
    greedy = server.post("chat/completions", messages=CHAT, temperature=0, max_tokens=8, speculation={"trace": True})
    assert {t["rank"] for step in greedy.json()["choices"][0]["speculation"] for t in step["tokens"]} == {1}


@pytest.mark.parametrize("sampling", [{"temperature": 0, "max_tokens": 40}, LIVELY])
def test_tracing_changes_no_token_and_is_only_there_when_asked_for(server: Running, sampling: dict[str, Any]) -> None:
    found = []
    for wish in ({"method": "prompt-lookup"}, {"method": "prompt-lookup", "trace": True}):
        answer = server.post("chat/completions", messages=CHAT, return_token_ids=True, speculation=wish, **sampling)
        choice = answer.json()["choices"][0]
        assert ("speculation" in choice) == ("trace" in wish)
        found.append(choice["token_ids"])
    assert found[0] == found[1]
    for chunk in stream(server, **sampling):
        assert all("speculation" not in choice for choice in chunk["choices"])


def test_several_choices_and_completions_are_traced_too(server: Running) -> None:
    body = {"prompt": ["one two", "three"], "n": 2, "max_tokens": 5, "temperature": 1, "speculation": {"trace": True}}
    choices = server.post("completions", **body).json()["choices"]
    assert len(choices) == 4
    for choice in choices:
        tokens = [token for step in choice["speculation"] for token in step["tokens"]]
        assert "".join(token["text"] for token in tokens) == choice["text"]


def test_plain_decoding_is_all_the_targets(server: Running) -> None:
    body = {"messages": CHAT, "max_tokens": 6, "speculation": {"off": True, "trace": True}}
    steps = server.post("chat/completions", **body).json()["choices"][0]["speculation"]
    assert [token["reason"] for step in steps for token in step["tokens"]] == ["target"] * 6
    assert all(step["tree"] == [] for step in steps)


def test_options_are_what_the_operator_allows(server: Running, tiny: Path) -> None:
    offer = server.client.get("/page/options").json()
    assert offer["model"] == MODEL
    assert offer["served"] == "suffix"
    assert offer["context"] == server.llm.engine.executor.max_length
    assert [method["name"] for method in offer["methods"]] == server.service.worker.methods.names
    assert not any(rule["lossy"] for method in offer["methods"] for rule in method["rules"])
    with serving(tiny_llm(tiny), allow_lossy=True, allow_methods=("prompt-lookup",)) as other:
        methods = {method["name"]: method for method in other.client.get("/page/options").json()["methods"]}
        assert set(methods) == {"plain", "prompt-lookup", "suffix"}
        assert methods["plain"]["rules"] == []
        assert methods["plain"]["drafts"] is False
        offered = methods["suffix"]["rules"]
        typical = next(rule for rule in offered if rule["name"] == "typical")
        assert typical["lossy"]
        assert typical["threshold"] == {"name": "eps", "default": 0.09, "whole": False}
        for rule in offered:  # each is one that the server takes
            wish = {"method": "suffix", "rule": rule["name"]}
            if rule["threshold"]:
                wish["threshold"] = rule["threshold"]["default"]
            answer = other.post("chat/completions", messages=CHAT, max_tokens=4, temperature=1, speculation=wish)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["speculation"]["rule"] == rule["name"]


def test_the_files_are_open_and_the_options_are_not(tiny: Path) -> None:
    with serving(tiny_llm(tiny), api_keys=("sesame",)) as server:
        assert server.client.get("/").status_code == 200
        assert server.client.get("/page/options").status_code == 401
        assert server.client.get("/page/options", headers={"Authorization": "Bearer sesame"}).status_code == 200


def test_the_page_refers_to_nothing_outside(server: Running) -> None:
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert len(static()) > 5
    for name, data in static().items():
        response = server.client.get("/" if name == "index.html" else f"/page/{name}")
        assert response.content == data
        assert response.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", data.decode()))
        assert found <= {"http://www.w3.org"}  # the name of SVG, which nobody fetches
        assert b"innerHTML" not in data


@pytest.mark.parametrize("path", ["/page/none.js", "/page/..%2fapp.py", "/page/", "/page/app.py"])
def test_no_other_file_is_served(server: Running, path: str) -> None:
    response = server.client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
