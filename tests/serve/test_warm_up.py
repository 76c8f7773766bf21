"""Every method writes before the first client comes; nothing of it is seen later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foredraft import LLM
from foredraft.serve.isolation import EngineFailedError
from foredraft.serve.settings import Limits

from .kit import Load, Running, serving, tiny_llm

BODY = {"prompt": [5, 7, 9], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def noted(folder: Path, method: str, steps: list[tuple[str, int, float]]) -> Load:
    """Notes (method, requests, temperature) of every step."""

    def load() -> LLM:
        llm = tiny_llm(folder, method)()
        step = llm.engine.step

        def note() -> Any:
            scheduler = llm.engine.scheduler
            requests = [*scheduler.running, *scheduler.waiting]
            first = requests[0]
            steps.append((first.method.name, len(requests), first.sequence.params.temperature))
            return step()

        llm.engine.step = note  # type: ignore[method-assign]
        return llm

    return load


def test_every_method_has_written_before_the_server_is_ready(tiny: Path, server: Running) -> None:
    steps: list[tuple[str, int, float]] = []
    with serving(noted(tiny, "suffix", steps), warm_up=True, allow_methods=("prompt-lookup",)) as warm:
        before = list(steps)
        expected = {(name, count, heat) for name in ("plain", "suffix") for count in (1, 4) for heat in (0.0, 0.8)}
        assert expected | {("prompt-lookup", 1, 0.0)} <= set(before)
        assert "_tokens" in vars(warm.service.grammars)  # the tokenizer as grammars read it
        for name in ("generated_tokens_total", "rounds_total"):
            assert warm.metric(name, method="suffix") == 0
        assert warm.llm.engine.scheduler.idle and warm.service.admission.held == 0
        found = warm.post("completions", **BODY).json()["choices"][0]["token_ids"]
        assert found == server.post("completions", **BODY).json()["choices"][0]["token_ids"]
        assert warm.metric("prompt_tokens_reused_total") == 0


def test_rounds_before_the_first_client_are_not_counted(tiny: Path) -> None:
    with serving(tiny_llm(tiny, "auto"), warm_up=True) as server:
        names = ("plain", "prompt-lookup", "suffix")
        assert [server.metric("auto_rounds_total", drafter=name) for name in names] == [0, 0, 0]
        server.post("completions", **BODY)
        assert sum(server.metric("auto_rounds_total", drafter=name) for name in names) > 0


def test_an_engine_that_cannot_write_does_not_start(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    def load() -> LLM:
        llm = tiny_llm(tiny)()

        def broken() -> Any:
            raise RuntimeError("no step")

        llm.engine.step = broken  # type: ignore[method-assign]
        return llm

    with serving(load, ready=False, warm_up=True) as server:
        server.wait(lambda: server.client.get("/health").json() == {"status": "stopped"})
        assert isinstance(server.service.worker.failure, EngineFailedError)
    assert "no step" in caplog.text


def test_a_step_of_a_client_may_take_two_minutes() -> None:
    """Kernels are compiled before, so there is no need to wait for five."""
    assert Limits().step_seconds == 120
