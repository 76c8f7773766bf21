"""What a model thinks of a prompt: `echo` with log-probabilities, and embeddings; both against transformers."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from foredraft import LLM, SamplingParams
from foredraft.serve.api import call
from foredraft.serve.api.calls.embeddings import BorrowedSlot
from foredraft.serve.engine_thread import State

from .kit import MODEL, Running, events, serving, tiny_llm

TEXT = "The river runs down from the hills, and nobody asks it why. " * 2  # in more than one piece


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


@torch.no_grad()
def read(reference: Any, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities of what comes next, final states) after every token."""
    out = reference(torch.tensor([ids]), output_hidden_states=True)
    return torch.log_softmax(out.logits[0], dim=1), out.hidden_states[-1][0]


def test_echo_with_logprobs(server: Running, reference: Any) -> None:
    asked: dict[str, Any] = {"prompt": TEXT, "echo": True, "max_tokens": 3, "temperature": 0}
    first = server.post("completions", **asked, logprobs=2).json()
    again = server.post("completions", **asked, logprobs=2).json()  # what lies in a slot is read all the same
    choice, ids = first["choices"][0], server.llm.tokenizer.encode(TEXT)
    scores, second = (answer["choices"][0]["logprobs"] for answer in (first, again))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and second["tokens"] == scores["tokens"]
    assert second["token_logprobs"][1:] == pytest.approx(scores["token_logprobs"][1:], abs=1e-4)
    assert "".join(scores["tokens"]) == choice["text"] and choice["text"].startswith(TEXT)
    assert len(scores["tokens"]) == len(ids) + 3 and scores["text_offset"][1] == len(scores["tokens"][0])
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    known, _ = read(reference, ids)
    for place, token in enumerate(ids[1:], 1):
        assert scores["token_logprobs"][place] == pytest.approx(float(known[place - 1, token]), abs=1e-3)
        assert max(scores["top_logprobs"][place].values()) == pytest.approx(float(known[place - 1].max()), abs=1e-3)
    without = server.post("completions", **asked | {"echo": False}, logprobs=2).json()["choices"][0]
    assert choice["text"] == TEXT + without["text"]
    assert scores["token_logprobs"][-3:] == pytest.approx(without["logprobs"]["token_logprobs"], abs=1e-4)


def test_a_prompt_can_be_read_alone(server: Running) -> None:
    """As harnesses ask that score texts: no token of an answer is handed out or counted."""
    asked: dict[str, Any] = {
        "prompt": [TEXT, "a b"],
        "echo": True,
        "temperature": 0,
        "logprobs": 1,
        "return_token_ids": True,
    }
    longer = server.post("completions", **asked, max_tokens=1).json()
    alone = server.post("completions", **asked, max_tokens=0).json()
    for choice, other, text in zip(alone["choices"], longer["choices"], (TEXT, "a b"), strict=True):
        assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == (text, "length", [])
        scores, known = choice["logprobs"], other["logprobs"]["token_logprobs"][:-1]
        assert scores["token_logprobs"][1:] == pytest.approx(known[1:], abs=1e-4)
        assert len(scores["tokens"]) == len(scores["text_offset"]) == len(known)
    assert alone["usage"]["completion_tokens"] == 0
    assert alone["usage"]["total_tokens"] == alone["usage"]["prompt_tokens"] == longer["usage"]["prompt_tokens"]
    parts = []
    with server.client.stream(
        "POST", "/v1/completions", json=asked | {"model": MODEL, "stream": True, "max_tokens": 0}
    ) as reply:
        parts = [document["choices"][0] for document in events(reply)]
    assert "".join(part["text"] for part in parts if part["index"] == 1) == "a b"
    assert {part["finish_reason"] for part in parts} == {None, "length"}
    refused = server.post("completions", prompt="a b", max_tokens=0)
    assert refused.status_code == 400 and "needs echo" in refused.json()["error"]["message"]


def test_offsets_are_places_in_the_text(server: Running) -> None:
    encode = server.llm.tokenizer.encode
    asked = {"prompt": [*encode("<|im_start|>"), *encode("日本語 of it")], "echo": True, "max_tokens": 3, "logprobs": 0}
    choice = server.post("completions", **asked, temperature=0).json()["choices"][0]
    tokens, places = (choice["logprobs"][name] for name in ("tokens", "text_offset"))
    assert tokens[0] == "<|im_start|>" and choice["text"].startswith("日本語 of it")  # a special token is no text
    assert "\N{REPLACEMENT CHARACTER}" in tokens[1] and places[:3] == [0, 0, 0]  # two tokens make the first character
    for token, place in zip(tokens[-5:], places[-5:], strict=True):
        assert choice["text"][place:].startswith(token)


@pytest.mark.parametrize("stream", [False, True])
def test_scores_of_a_prompt_keep_the_event_loop_free(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A long prompt with many rivals takes a tenth of a second and more, for every choice."""
    loops, score = list[bool](), call.prompt_scores

    def scores(*given: Any) -> Any:
        loops.append(asyncio._get_running_loop() is not None)
        return score(*given)

    monkeypatch.setattr(call, "prompt_scores", scores)
    asked: dict[str, Any] = {"prompt": "a b c", "echo": True, "logprobs": 2, "max_tokens": 1, "n": 2, "stream": stream}
    assert server.post("completions", **asked).status_code == 200
    assert loops == [False, False]


def test_an_echo_in_a_stream_and_of_ids(server: Running) -> None:
    asked: dict[str, Any] = {"prompt": [[5, 6, 7], [8]], "echo": True, "max_tokens": 2, "temperature": 0, "logprobs": 0}
    whole = server.post("completions", **asked).json()["choices"]
    parts: dict[int, list[Any]] = {0: [], 1: []}
    with server.client.stream("POST", "/v1/completions", json={"model": MODEL, "stream": True} | asked) as reply:
        for document in events(reply):
            choice = document["choices"][0]
            parts[choice["index"]] += choice["logprobs"]["token_logprobs"]
    for choice, count in zip(whole, (3, 1), strict=True):
        assert parts[choice["index"]] == choice["logprobs"]["token_logprobs"]
        assert len(parts[choice["index"]]) == count + 2 and parts[choice["index"]][0] is None


@pytest.mark.parametrize("method", ["draft-model", "suffix"])
def test_drafters_see_the_same_states_of_a_scored_prompt(tiny: Path, method: str) -> None:
    """Texts and drafts of a request do not depend on whether its prompt is scored; offline, by ids."""
    llm = LLM(str(tiny), method, dtype="fp32")
    plain, scored = (llm.generate(TEXT, SamplingParams(max_new_tokens=12, prompt_logprobs=top))[0] for top in (None, 0))
    assert plain.token_ids == scored.token_ids and plain.prompt_logprobs is None
    assert scored.prompt_logprobs is not None and len(scored.prompt_logprobs) == len(llm.tokenizer.encode(TEXT)) - 1


def test_embeddings_are_the_models_states(tiny: Path, reference: Any) -> None:
    texts = [TEXT, "Oslo"]
    with serving(tiny_llm(tiny, slots=2), prompt_tokens=8) as server:
        ids = [server.llm.tokenizer.encode(text) for text in texts]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            found = client.embeddings.create(model=MODEL, input=texts)
        last = server.post("embeddings", input=ids, pooling="last", encoding_format="float").json()
        server.wait(lambda: len(server.llm.engine.scheduler.slots) == 2)  # the borrowed one comes back
    for place, tokens in enumerate(ids):
        _, states = read(reference, tokens)
        pairs = (found.data[place].embedding, states.mean(0)), (last["data"][place]["embedding"], states[-1])
        for vector, state in pairs:
            assert vector == pytest.approx((state / state.norm()).tolist(), abs=1e-4)
            assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    assert found.usage.prompt_tokens == sum(map(len, ids)) and [each.index for each in found.data] == [0, 1]


def test_embeddings_as_bytes(server: Running) -> None:
    asked = {"input": "Oslo"}
    numbers, packed = (
        server.post("embeddings", **asked, encoding_format=form).json()["data"][0]["embedding"]
        for form in ("float", "base64")
    )
    assert list(struct.unpack(f"<{len(numbers)}f", base64.b64decode(packed))) == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": ""}, 400),
        ({"input": []}, 400),
        ({"input": [1 << 40]}, 400),
        ({"input": "word " * 400}, 400),
        ({"input": "x", "dimensions": 8}, 400),
        ({"input": "x", "pooling": "max"}, 400),
        ({"input": "x", "model": "other"}, 404),
    ],
)
def test_embeddings_refuse(server: Running, body: dict[str, Any], status: int) -> None:
    assert server.post("embeddings", **body).status_code == status


def test_embeddings_beside_answers_wait_for_no_slot(tiny: Path) -> None:
    """While every slot is taken there is none to borrow; the next call finds one, and nothing was lost."""
    with serving(tiny_llm(tiny, "plain", slots=1, pause=0.05)) as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 120, "stream": True, "temperature": 0, "ignore_eos": True}
        with server.client.stream("POST", "/v1/completions", json=body):
            server.wait(lambda: server.running == 1)
            refused = server.post("embeddings", input="x")
            assert refused.status_code == 429 and refused.headers["retry-after"]
        server.wait(lambda: server.running == 0)
        assert server.post("embeddings", input="x").status_code == 200


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    read = BorrowedSlot.read

    def slow(slot: BorrowedSlot, *given: Any) -> torch.Tensor:
        time.sleep(0.2)
        return read(slot, *given)

    monkeypatch.setattr(BorrowedSlot, "read", slow)


@pytest.mark.usefixtures("slow_reads")
@pytest.mark.parametrize(("texts", "grace", "status"), [(3, 20.0, 200), (60, 0.3, 503)])
def test_texts_that_are_being_read_have_the_grace_time_too(tiny: Path, texts: int, grace: float, status: int) -> None:
    with serving(tiny_llm(tiny)) as server, ThreadPoolExecutor() as pool:
        asked = pool.submit(server.post, "embeddings", input=["a"] * texts)
        server.wait(lambda: server.service.admission.held == 1)
        server.service.worker.drain(grace)
        answer = asked.result(30)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == "shutdown" if status == 503 else len(answer.json()["data"]) == texts
        server.wait(lambda: server.service.state is State.STOPPED, 5)
