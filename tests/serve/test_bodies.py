"""Bodies that are wrong a million times over, or long on purpose, cost little to refuse."""

from __future__ import annotations

import json
import time

import pytest

from foredraft.serve.api.api_errors import ApiError
from foredraft.serve.api.body import parse
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
