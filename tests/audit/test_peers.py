"""Other engines in this process, on models of sixteen tokens: transformers as it is, and bent on purpose."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foredraft.audit.greedy_identity import greedy_identity
from foredraft.audit.peers import load_peer
from foredraft.audit.peers.hugging_face import TransformersSubject, load
from foredraft.audit.peers.vllm_engine import VllmSubject, speculation
from foredraft.audit.sequential.test import Plan, Verdict, run_sequential_test
from foredraft.errors import ForedraftError, UsageError

PROMPT = (3, 4, 5, 3, 4)


def plan(resolution: float, texts: int = 400, tokens: int = 2) -> Plan:
    return Plan((PROMPT,), tokens, resolution=resolution, texts=texts, batch=16)


@pytest.mark.parametrize("assistant", ["none", "lookup:3", "layers:1"])
def test_transformers_passes(sixteen: Path, assistant: str) -> None:
    subject = load(sixteen, assistant, 1.0)
    result = run_sequential_test(subject, plan(0.35))
    assert result.verdict is Verdict.PASS, result.reason
    assert greedy_identity(subject, [PROMPT, (1, 2, 1)], 8, "fp32")["verdict"] == "PASS"
    assert "transformers" in subject.version


def test_a_sampler_with_another_temperature_fails(sixteen: Path) -> None:
    """The writer is colder than the distribution says: what an engine does that forgets the request's temperature."""
    subject = load(sixteen, "lookup:3", 1.0)
    right = subject.write

    def cold(prompt: Any, tokens: int, *, plain: bool = False, **options: Any) -> Any:
        return right(prompt, tokens, plain=plain, **(options | {"temperature": 0.3}))

    subject.write = cold  # type: ignore[method-assign]
    result = run_sequential_test(subject, plan(0.1))
    assert result.verdict is Verdict.FAIL and result.first is not None


def test_distributions_follow_the_temperature(sixteen: Path) -> None:
    warm, cold = (load(sixteen, "none", temperature).distributions(PROMPT, [(), (7,)]) for temperature in (1.0, 0.5))
    for a, b in zip(warm, cold, strict=True):
        assert a.tokens == b.tokens
        assert np.allclose(b.mass[:16], a.mass[:16] ** 2 / (a.mass[:16] ** 2).sum(), atol=1e-6)


@pytest.mark.parametrize("assistant", ["lookup:x", "layers:"])
def test_wrong_assistants_are_refused(sixteen: Path, assistant: str) -> None:
    with pytest.raises(UsageError, match="with a number"):
        load(sixteen, assistant, 1.0)
    with pytest.raises(UsageError, match="temperature"):
        TransformersSubject("x", None, {}, 0.0)


def test_an_engine_that_is_not_installed_says_so(sixteen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ForedraftError, match="vLLM is not installed"):
        load_peer("vllm", sixteen, "ngram:3", 1.0, "fp32")


def test_options_for_vllm() -> None:
    assert speculation("none") == {}
    assert speculation("ngram:4")["speculative_config"]["num_speculative_tokens"] == 4
    assert speculation("some/folder")["speculative_config"]["model"] == "some/folder"
    with pytest.raises(UsageError, match="ngram"):
        speculation("ngram:x")


def test_the_adapter_for_vllm_asks_as_vllm_wants_to_be_asked() -> None:
    """A stand-in with the shape of vLLM's API; the real one needs its own environment."""
    asked: list[Any] = []

    class Engine:
        def generate(self, prompts: list[Any], params: list[Any], use_tqdm: bool) -> list[Any]:
            asked.extend(zip(prompts, params, strict=True))
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1, 2])]) for _ in prompts]

    plain: Any = SimpleNamespace(params=SimpleNamespace(temperature=0.7), greedy=lambda *_, **__: [(9,)])
    subject = VllmSubject("x", "0", Engine(), SimpleNamespace, plain)
    assert subject.sample((5, 6), 2, 2, seed=10) == [(1, 2), (1, 2)]
    assert [p.seed for _, p in asked] == [10, 11] and asked[0][0] == {"prompt_token_ids": [5, 6]}
    assert asked[0][1].temperature == 0.7 and asked[0][1].ignore_eos
    assert subject.greedy([(5,)], 2, speculate=True) == [(1, 2)]
    assert subject.greedy([(5,)], 2, speculate=False) == [(9,)]
    assert asked[-1][1].temperature == 0.0
