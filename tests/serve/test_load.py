"""A server with many requests: prompts in pieces, prefixes that are read once, and figures that tell of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from foredraft import LLM

from .kit import Load, Running, serving, tiny_llm
from .test_faults import raw

LONG_PROMPT = [5, 7, 9, 11] * 20
BODY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}


def ids(server: Running, **body: Any) -> list[int]:
    answer = server.post("completions", **BODY | body)
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def breaking_reads(folder: Path, breaks: Callable[[int], bool], **options: Any) -> Load:
    """The n-th reading of prompt pieces fails after the target has read them, where `breaks(n)`."""

    def load() -> LLM:
        llm = tiny_llm(folder, **options)()
        prefill, count = llm.engine.executor.prefill, iter(range(10**6))

        def stumble(*args: Any) -> Any:
            found = prefill(*args)
            if breaks(next(count)):
                raise RuntimeError("the machine hiccuped")
            return found

        llm.engine.executor.prefill = stumble  # type: ignore[method-assign]
        return llm

    return load


@pytest.mark.parametrize("method", ["suffix", "draft-model"])
def test_a_prompt_whose_reading_fails_is_read_again(tiny: Path, server: Running, method: str) -> None:
    expected = ids(server, prompt=LONG_PROMPT)
    load = breaking_reads(tiny, lambda n: n == 4, method=method)
    with serving(load, prompt_tokens=10, share_drafts=False) as other:
        assert ids(other, prompt=LONG_PROMPT) == expected
        assert other.metric("step_failures_total") == 1
        assert ids(other, prompt=[*LONG_PROMPT, 3]) == ids(server, prompt=[*LONG_PROMPT, 3])
        assert other.metric("prompt_tokens_reused_total") == 80


def test_a_client_that_vanishes_while_its_prompt_is_read_frees_its_slot(tiny: Path) -> None:
    with serving(tiny_llm(tiny, slots=1, pause=0.05), prompt_tokens=2) as server:
        with raw(server, stream=True, prompt=LONG_PROMPT):
            server.wait(lambda: server.running == 1)
        server.wait(lambda: server.running == 0)
        server.wait(lambda: server.metric("requests_total", outcome="cancelled") == 1)  # counted just after
        assert server.metric("generated_tokens_total", method="suffix") == 0


def test_requests_side_by_side_write_what_each_writes_alone(tiny: Path) -> None:
    """Ragged prompts in pieces, prefixes reused, drafts shared: nobody's text changes."""
    prompts = [[*LONG_PROMPT[: 3 + 9 * i], i] for i in range(8)]
    with serving(tiny_llm(tiny, slots=8), reuse_prefixes=False, share_drafts=False) as server:
        expected = [ids(server, prompt=prompt, speculation={"off": True}) for prompt in prompts]
    with serving(tiny_llm(tiny, slots=3), prompt_tokens=7) as server:
        for _ in range(2):
            found: dict[int, list[int]] = {}

            def ask(number: int, found: dict[int, list[int]] = found) -> None:
                found[number] = ids(server, prompt=prompts[number])

            threads = [Thread(target=ask, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [found[number] for number in range(8)] == expected
        assert server.metric("prompt_tokens_reused_total") > 0


def test_prefixes_are_read_once(tiny: Path) -> None:
    with serving(tiny_llm(tiny)) as server:
        first = ids(server, prompt=LONG_PROMPT)
        again = [*LONG_PROMPT, *first, 4]
        assert server.metric("prompt_tokens_reused_total") == 0
        second = ids(server, prompt=again)
        assert server.metric("prompt_tokens_reused_total") == len(again) - 2  # the last token of the answer was pending
    with serving(tiny_llm(tiny), reuse_prefixes=False) as server:
        assert (ids(server, prompt=LONG_PROMPT), ids(server, prompt=again)) == (first, second)
        assert server.metric("prompt_tokens_reused_total") == 0


def test_rounds_are_counted_by_what_auto_chose(tiny: Path) -> None:
    with serving(tiny_llm(tiny, "auto")) as server:
        ids(server, prompt=LONG_PROMPT)
        rounds = server.metric("rounds_total", method="auto")
        chosen = [server.metric("auto_rounds_total", drafter=name) for name in ("plain", "prompt-lookup", "suffix")]
        assert rounds - 1 <= sum(chosen) <= rounds  # the last token of an answer needs no choice
        assert rounds > 1
    with serving(tiny_llm(tiny)) as server:
        ids(server, prompt=LONG_PROMPT)
        assert "auto_rounds" in server.client.get("/metrics").text
        assert server.metric("auto_rounds_total", drafter="suffix") == 0
