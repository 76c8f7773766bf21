"""A server whose head learns: beside the engine, within its share of the time, and across a restart."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from foredraft import LLM
from foredraft.draft.online.online_drafter import OnlineDrafter
from foredraft.models.decoder import FINAL
from foredraft.models.heads import HeadSpec, Identity, SpeculatorHead, save_head
from foredraft.recipes.trained import decoder_of
from foredraft.serve.metrics import Metrics
from foredraft.serve.upkeep.learning_thread import LearningThread

from .kit import Load, Running, serving


@pytest.fixture(scope="module")
def head(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the tiny model."""
    llm = LLM(str(tiny), "plain", dtype="fp32")
    decoder, folder = decoder_of(llm.target), tmp_path_factory.mktemp("heads") / "random"
    identity = Identity.of(decoder.config, llm.tokenizer.vocab_hash())
    spec = HeadSpec("mlp-speculator", identity, 64, (FINAL,), 1, 3, {"scales": [1.0], "width": 16})
    torch.manual_seed(0)
    save_head(folder, SpeculatorHead(decoder, spec, torch.arange(64)), spec, {}, {})
    return folder


def learning(tiny: Path, head: Path, keep: Path) -> Load:
    spelled = f"online:every=2,margin=-1,folder={keep},shape=chain:drawn=false"
    return lambda: LLM(str(tiny), spelled, drafter=str(head), dtype="fp32", batch_size=2)


def ask(server: Running, i: int, **more: Any) -> list[int]:
    body = {"prompt": f"Number {i}:", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = server.post("completions", **body | more)
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def test_a_server_learns_and_a_restart_goes_on(tiny: Path, head: Path, tmp_path: Path) -> None:
    bias = {"logit_bias": {str(i): 100 for i in range(64)}}  # so that the head knows the words
    with serving(learning(tiny, head, tmp_path)) as server:
        for i in range(8):
            assert ask(server, i, **bias) == ask(server, i, **bias, speculation={"off": True})
        server.wait(lambda: server.metric("online_swaps") >= 1)
        assert server.metric("online_updates") >= 1 and server.metric("online_places") > 0
        drafter = server.service.worker.methods.online[0]
        assert isinstance(drafter, OnlineDrafter) and len(drafter.learners) == 1
    (folder,) = tmp_path.iterdir()
    kept = sorted(folder.iterdir())
    assert kept
    with serving(learning(tiny, head, tmp_path)) as server:
        ask(server, 1, **bias)
        (learner,) = server.service.worker.methods.online[0].learners.values()
        assert learner.weights is not learner._first


def test_other_methods_start_no_thread(server: Running) -> None:
    assert server.service.learning._thread is None


def test_the_thread_keeps_to_its_share_while_answers_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, now = [True], [100.0]
    thread = LearningThread(lambda: busy[0], Metrics(), share=0.2)

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("foredraft.serve.upkeep.learning_thread.time.monotonic", lambda: now[0])
    monkeypatch.setattr(thread._end, "wait", wait)

    def rest(worked: float) -> float:
        thread._began = now[0]
        now[0] += worked
        before = now[0]
        thread.pause()
        return now[0] - before

    assert rest(0.5) == pytest.approx(2.0)  # four times what it worked
    busy[0] = False
    assert rest(0.5) == 0.0


def test_a_failing_update_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def update(self, pause: object) -> bool:
            raise RuntimeError("broken")

    thread = LearningThread(lambda: False, Metrics())
    thread.queue("", Broken())  # type: ignore[arg-type]
    thread._waiting.put(None)
    alone = Thread(target=thread._live)  # of low priority, for good
    alone.start()
    alone.join()
    assert "has failed" in caplog.text
