"""Bodies that are wrong a million times over, or long on purpose, cost little to refuse."""

from __future__ import annotations

import json
import time
from threading import Event, Thread

import pytest

from foredraft.models import Tokenizer
from foredraft.serve.api.api_errors import ApiError
from foredraft.serve.api.body import check_size, parse
from foredraft.serve.api.schema import ChatBody, CompletionBody

from .kit import Running

SIZE = 1 << 20


def filled(begin: str, item: str, end: str) -> bytes:
    count = (SIZE - len(begin) - len(end)) // (len(item) + 1)
    return (begin + ",".join([item] * count) + end).encode()


BOMBS = {
    "objects for tokens": (CompletionBody, filled('{"model":"m","prompt":[', "{}", "]}")),
    "objects in a list of tokens": (CompletionBody, filled('{"model":"m","prompt":[[', "{}", "]]}")),
    "too many prompts": (CompletionBody, filled('{"model":"m","prompt":[', "[1]", "]}")),
    "one wrong token": (CompletionBody, filled('{"model":"m","prompt":[', "1", ",{}]}")),
    "empty messages": (ChatBody, filled('{"model":"m","messages":[', "{}", "]}")),
    "empty parts": (ChatBody, filled('{"model":"m","messages":[{"role":"user","content":[', "{}", "]}]}")),
    "stops": (CompletionBody, filled('{"model":"m","prompt":"a","stop":[', "{}", "]}")),
    "strings for stops": (CompletionBody, filled('{"model":"m","prompt":"a","stop":[', '"x"', "]}")),
    "strings for tokens": (CompletionBody, filled('{"model":"m","prompt":[', '"x"', "]}")),
    "stop tokens": (CompletionBody, filled('{"model":"m","prompt":"a","stop_token_ids":[', "{}", "]}")),
    "bias": (CompletionBody, filled('{"model":"m","prompt":"a","logit_bias":{', '"1":"x"', "}}")),
    "a long key": (CompletionBody, f'{{"model":"m","prompt":"a","logit_bias":{{"{"k" * SIZE}":1}}}}'.encode()),
    "tools": (ChatBody, filled('{"model":"m","messages":[{"role":"user","content":""}],"tools":[', "{}", "]}")),
    "depth": (ChatBody, b'{"model":"m","messages":[],"response_format":' + b'{"a":' * (SIZE // 5)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_wrong_body_is_refused_quickly_and_briefly(name: str) -> None:
    kind, data = BOMBS[name]
    begun = time.process_time()
    with pytest.raises(ApiError) as refusal:
        parse(kind, data, SIZE)
    assert time.process_time() - begun < 2
    assert refusal.value.status == 400
    assert len(refusal.value.message) < 1500


@pytest.mark.parametrize("item", ['"x"', "{}", "1"])
def test_what_costs_most_to_read_is_counted_first(item: str) -> None:
    """Reading a quarter of a million values takes the interpreter's lock for a tenth of a second."""
    with pytest.raises(ApiError, match="the body holds"):
        check_size(filled('{"model":"m","nobody knows":[', item, "]}"), SIZE)


def test_sensible_bodies_are_read_whatever_their_texts_hold() -> None:
    """Brackets and commas within strings do not count, escaped quotes or not."""
    text = '[{"a\\": 1}, ' * 50_000
    body = json.dumps({"model": "m", "prompt": text}).encode()
    assert parse(CompletionBody, body, SIZE).prompt == text
    ids = json.dumps({"model": "m", "prompt": [[7] * 4096] * 16}).encode()
    assert len(parse(CompletionBody, ids, SIZE).prompt) == 16
    bias = json.dumps({"model": "m", "prompt": "x", "logit_bias": {str(n): 1 for n in range(49152)}}).encode()
    assert len(parse(CompletionBody, bias, SIZE).logit_bias or {}) == 49152


@pytest.mark.parametrize("stop", ["x" * 1025, ["ok", "x" * 1025], ["x"] * 17], ids=["one", "in a list", "too many"])
def test_stop_strings_have_a_longest_length(server: Running, stop: str | list[str]) -> None:
    refusal = server.post("completions", prompt="a", stop=stop)
    assert refusal.status_code == 400
    assert "at most" in refusal.json()["error"]["message"]
    assert server.post("completions", prompt="a", max_tokens=2, stop=["x" * 1024] * 16).status_code == 200


def test_a_prompt_that_is_far_too_long_is_not_read_to_its_end(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of text takes a second to cut into tokens."""
    read: list[int] = []
    tokenizer = type(server.llm.tokenizer)
    encode = tokenizer.encode

    def counted(self: Tokenizer, text: str, add_special: bool = True) -> list[int]:
        read.append(len(text))
        return encode(self, text, add_special)

    monkeypatch.setattr(tokenizer, "encode", counted)
    words = "so many words " * 70_000
    chat = [{"role": "user", "content": words}]
    for refused in (server.post("completions", prompt=words), server.post("chat/completions", messages=chat)):
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert "more than 127 tokens" in refused.json()["error"]["message"]
    assert server.post("suggestions", prompt=words).status_code == 200
    assert max(read) < 10_000


def test_other_threads_run_while_a_long_text_is_cut_into_tokens(server: Running) -> None:
    tokenizer, ticks, done = server.llm.tokenizer, 0, Event()
    text = "so many words " * 50_000

    def work() -> None:
        tokenizer.encode(text)
        done.set()

    thread = Thread(target=work)
    thread.start()
    while not done.wait(0.005):
        ticks += 1
    thread.join()
    assert ticks > 3
    assert tokenizer.encode(text[:5600]) == tokenizer.backend.encode(text[:5600]).ids
