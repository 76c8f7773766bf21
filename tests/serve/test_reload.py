"""Drafters and judges that are loaded again while a server serves."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from foredraft import LLM
from foredraft.cli.serve import renewed
from foredraft.errors import UsageError
from foredraft.models.judges.artefact import SPEC
from foredraft.serve.upkeep.reload import on_hangup, reload

from .kit import Running, judged_llm, make_judge, serving, tiny_llm
from .process import serve

BODY: dict[str, Any] = {"prompt": [5, 7, 9, 5, 7, 9, 5], "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def ask(server: Running, **more: Any) -> tuple[list[int], dict[str, Any]]:
    answer = server.post("completions", **BODY | {"max_tokens": 24} | more).json()
    return answer["choices"][0]["token_ids"], answer["usage"]["speculation"]


def renew(server: Running, make: Any = None) -> list[str]:
    """Load again; what was said about it."""
    said: list[str] = []
    if make is not None:
        server.service.renew = make
    made = reload(server.service, said.append)
    server.wait(lambda: bool(said))
    assert made.done()
    return said


def test_new_requests_get_the_new_method_and_running_ones_keep_theirs(tiny: Path) -> None:
    with serving(tiny_llm(tiny, pause=0.05), share_drafts=False) as server:
        plain, _ = ask(server, speculation={"off": True}, max_tokens=20)
        body = BODY | {"model": "tiny", "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
        with server.client.stream("POST", "/v1/completions", json=body) as reply:
            server.wait(lambda: server.running == 1)
            (running,) = server.llm.engine.scheduler.running
            old = server.service.worker.methods.served
            assert renew(server, lambda llm: llm.renewed("prompt-lookup")) == [
                "reloaded: new requests get method prompt-lookup + sample-and-match"
            ]
            assert running.method is old and server.service.worker.methods.served.name == "prompt-lookup"
            lines = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
        assert [token for each in lines for choice in each["choices"] for token in choice["token_ids"]] == plain
        assert lines[-1]["usage"]["speculation"]["method"] == "suffix"
        ids, used = ask(server, max_tokens=20)
        assert ids == plain and used["method"] == "prompt-lookup"
        assert server.metric("method", method="prompt-lookup", rule="sample-and-match") == 1
        assert server.metric("method", method="suffix", rule="sample-and-match") == 0
        assert server.metric("reloads_total", outcome="done") == 1


def test_what_cannot_be_loaded_changes_nothing(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(llm: LLM) -> LLM:
        return llm.renewed("draft-model", drafter="nowhere/at/all")

    def broken(llm: LLM) -> LLM:
        raise RuntimeError("two\nlines")

    with serving(tiny_llm(tiny)) as server:
        before, served = ask(server), server.service.worker.methods
        (said,) = renew(server, wrong)
        assert said.startswith("not reloaded, the method stays as it is: ") and "nowhere/at/all" in said
        (said,) = renew(server, broken)
        assert said.endswith("RuntimeError: two lines") and "\n" not in said
        assert server.service.worker.methods is served and ask(server)[0] == before[0]
        assert server.metric("reloads_total", outcome="failed") == 2


def test_a_judge_is_read_again_from_its_folder(tiny: Path, tmp_path: Path) -> None:
    make_judge(tiny, tmp_path, threshold=1.0)
    with serving(judged_llm(tiny, tmp_path), share_drafts=False) as server:
        strict, used = ask(server)
        assert used["judged"] == 0
        spec = json.loads((tmp_path / SPEC).read_text())
        (tmp_path / SPEC).write_text(json.dumps(spec | {"threshold": 0.0}))
        assert ask(server)[0] == strict  # not before it was asked to
        renew(server)
        loose, used = ask(server)
        assert used["judged"] > 0 and loose != strict
        for file in tmp_path.iterdir():
            file.unlink()
        assert renew(server)[0].startswith("not reloaded")
        assert ask(server) == (loose, used)


def test_an_llm_that_is_renewed_leaves_the_old_one_alone(tiny: Path) -> None:
    llm = LLM(str(tiny), "suffix", dtype="fp32")
    fresh = llm.renewed()
    assert fresh.engine is llm.engine and fresh.method is not llm.method and fresh.method.name == llm.method.name
    assert llm.renewed("prompt-lookup", draft_length=3).method.draft_length == 3 and llm.method.name == "suffix"
    with pytest.raises(UsageError):
        llm.renewed("suffix", judge="somewhere")


def test_a_signal_in_the_main_thread(server: Running) -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    with on_hangup(server.service, said.append):
        os.kill(os.getpid(), signal.SIGHUP)
        server.wait(lambda: bool(said))
    assert said[0].startswith("reloaded: new requests get method suffix")
    assert signal.getsignal(signal.SIGHUP) == before


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('method = "suffix"\ndraft-length = 5\nport = 9\n')
    asked: list[Any] = []
    llm: Any = SimpleNamespace(options=SimpleNamespace(store=None), renewed=lambda **given: asked.append(given))
    renewed(config, {"method": "prompt-lookup"}, {"method": "auto", "rule": None}, llm)
    assert asked == [{"method": "prompt-lookup", "rule": None, "draft_length": 5, "store": None}]


@pytest.mark.slow
def test_a_signal_reads_the_file_again(tiny: Path, tmp_path: Path) -> None:
    """A process of its own: SIGHUP takes up what the file says about drafting, and what is wrong in it ends nothing."""
    config = tmp_path / "serve.toml"
    config.write_text('method = "suffix"\nslots = 2\nmax-length = 128\n')
    with serve(str(tiny), "--config", str(config), "--no-warm-up") as process:

        def hear(words: str) -> None:
            process.stop(signal.SIGHUP)
            while not any(words in line for line in process.said):
                assert process.popen.poll() is None
                time.sleep(0.01)

        config.write_text('method = "prompt-lookup"\nslots = 2\n')
        hear("reloaded: new requests get method prompt-lookup")
        body = BODY | {"model": str(tiny), "max_tokens": 4}
        used = httpx.post(f"{process.url}/v1/completions", json=body, timeout=300).json()["usage"]["speculation"]
        assert used["method"] == "prompt-lookup"
        config.write_text('method = "no-such-method"\n')
        hear("not reloaded, the method stays as it is: ")
        assert httpx.get(f"{process.url}/health", timeout=300).status_code == 200
