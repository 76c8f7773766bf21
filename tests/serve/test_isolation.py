"""One client's text never helps another, and so tells it nothing: drafts, counters and prefix reuse, by API key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.serve import served_stores
from foredraft.draft.store import Datastore
from foredraft.errors import UsageError
from foredraft.models import Tokenizer
from foredraft.serve.settings import Settings

from .kit import MODEL, Running, serving, tiny_llm

PROMPT = list(range(300, 340))
KEYS = ("victim", "stranger")


@pytest.fixture(scope="module")
def secret(tiny: Path) -> Iterator[tuple[Running, list[int]]]:
    """A server with two keys, and what one of them was answered."""
    with serving(tiny_llm(tiny), api_keys=KEYS, allow_methods=("suffix", "prompt-lookup", "auto")) as server:
        yield server, ask(server, "victim", PROMPT, max_tokens=40)["choices"][0]["token_ids"]


def ask(server: Running, key: str, prompt: list[int], status: int = 200, **body: Any) -> dict[str, Any]:
    """A greedy completion."""
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | body
    response = server.client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def guess(answer: list[int]) -> list[int]:
    """A prompt that ends like a part of another client's answer, in the hope that the rest is drafted."""
    return [9000, *dict.fromkeys(answer[4:12])]


def drafted(reply: dict[str, Any]) -> int:
    count: int = reply["usage"]["speculation"]["drafted"]
    return count


@pytest.mark.parametrize("method", ["suffix", "auto", "prompt-lookup"])
def test_no_trace_shows_anothers_text(secret: tuple[Running, list[int]], method: str) -> None:
    server, answer = secret
    wish = {"method": method, "trace": True}
    reply = ask(server, "stranger", guess(answer), max_tokens=2, speculation=wish)
    assert reply["choices"][0]["speculation"][0]["tree"] == []


def test_counters_are_the_same_for_a_right_guess_and_a_wrong_one(secret: tuple[Running, list[int]]) -> None:
    server, answer = secret
    wish = {"method": "suffix"}
    assert drafted(ask(server, "stranger", guess(answer), max_tokens=2, speculation=wish)) == 0
    assert drafted(ask(server, "victim", guess(answer), max_tokens=2, speculation=wish)) > 0


def test_no_prefix_of_another_client_is_reused(secret: tuple[Running, list[int]]) -> None:
    """Reuse would make the answer begin sooner: a clock would tell what was asked before."""
    server, _ = secret

    def reused(key: str, **body: Any) -> float:
        before = server.metric("prompt_tokens_reused_total")
        ask(server, key, PROMPT, max_tokens=1, **body)
        return server.metric("prompt_tokens_reused_total") - before

    assert reused("stranger") == 0
    assert reused("stranger") > 0
    assert reused("victim") > 0
    assert reused("victim", cache_salt="one of my users") == 0
    assert reused("victim", cache_salt="one of my users") > 0
    assert reused("stranger", cache_salt="one of my users") == 0


def test_shared_texts_are_shared_without_a_word_about_them(tiny: Path) -> None:
    with serving(tiny_llm(tiny), api_keys=KEYS, share_texts=True) as server:
        answer = ask(server, "victim", PROMPT, max_tokens=40)["choices"][0]["token_ids"]
        reply = ask(server, "stranger", guess(answer), max_tokens=2)
        assert set(reply["usage"]["speculation"]) == {"method", "rule"}
        assert server.metric("drafted_tokens_total", method="suffix") > 0
        refusal = ask(server, "stranger", guess(answer), 403, speculation={"trace": True})
        assert refusal["error"]["code"] == "trace_not_allowed"
        options = server.client.get("/page/options", headers={"Authorization": "Bearer victim"}).json()
        assert options["trace"] is False


def test_the_operator_may_show_them_all_the_same(tiny: Path) -> None:
    with serving(tiny_llm(tiny), api_keys=KEYS, share_texts=True, allow_trace=True) as server:
        answer = ask(server, "victim", PROMPT, max_tokens=40)["choices"][0]["token_ids"]
        reply = ask(server, "stranger", guess(answer), max_tokens=2, speculation={"trace": True})
        assert drafted(reply) > 0
        assert reply["choices"][0]["speculation"][0]["tree"]


def test_strangers_without_keys_share_nothing(tiny: Path) -> None:
    """Listening on a public address without keys: every call is a client of its own."""
    with serving(tiny_llm(tiny), private_calls=True) as server:
        answer = ask(server, "none", PROMPT, max_tokens=40)["choices"][0]["token_ids"]
        assert drafted(ask(server, "none", guess(answer), max_tokens=2)) == 0
        ask(server, "none", PROMPT, max_tokens=1)
        assert server.metric("prompt_tokens_reused_total") == 0


def test_a_store_of_one_key_drafts_for_no_other(tiny: Path, tmp_path: Path) -> None:
    """Both ask the same; the store of the first key holds the answer, the shared one nothing of it."""
    tokenizer = Tokenizer.from_folder(tiny)
    folders = {name: str(tmp_path / name) for name in ("mine", "shared")}
    for folder in folders.values():
        Datastore.create(folder, tokenizer.vocab_hash(), tokenizer.vocab_size).add([[5, 6, 7]])
    settings = Settings(MODEL, api_keys=KEYS)
    store = served_stores([folders["shared"], f"key-1={folders['mine']}"], settings)
    with serving(tiny_llm(tiny), api_keys=KEYS, allow_methods=("plain",)) as server:
        answer = ask(server, "victim", PROMPT, max_tokens=24)["choices"][0]["token_ids"]
    Datastore(folders["mine"]).add([PROMPT + answer])
    with serving(tiny_llm(tiny, method="rest", store=store), api_keys=KEYS, allow_methods=("plain",)) as server:
        mine, other = (ask(server, key, PROMPT, max_tokens=24) for key in KEYS)
    assert mine["choices"][0]["token_ids"] == other["choices"][0]["token_ids"] == answer
    assert drafted(mine) > 0 and drafted(other) == 0
    for wrong, shared in ((["key-3=x"], False), (["me=x"], False), (["key-1=x"], True)):
        with pytest.raises(UsageError):
            served_stores(wrong, replace(settings, share_texts=shared))
