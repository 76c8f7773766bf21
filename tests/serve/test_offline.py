"""`foredraft generate --batch-size` and the server run their requests through one scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft import LLM
from foredraft.cli.app import run
from foredraft.engine.scheduler import Scheduler

from .kit import serving

PROMPTS = ("word " * 25, "a b a b a", "c d c d c")  # the first leaves almost no room for an answer
LENGTH, TOKENS = 32, 20


class Watched:
    """What every step of a scheduler found: who ran, out of how many slots, with a share of the pass or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[frozenset[int], int, bool]] = []
        original = Scheduler.next_groups

        def next_groups(scheduler: Scheduler) -> Any:
            running = frozenset(request.id for request in scheduler.running)
            self.steps.append((running, scheduler.prompt_budget, scheduler.planner is not None))
            return original(scheduler)

        monkeypatch.setattr(Scheduler, "next_groups", next_groups)


def offline(capsys: pytest.CaptureFixture[str], model: Path) -> list[list[int]]:
    sizes = ["--batch-size", "2", "--max-length", str(LENGTH), "-n", str(TOKENS)]
    how = ["--raw", "--ignore-eos", "--method", "suffix", "--dtype", "fp32", "--json"]
    assert run(["generate", *PROMPTS, "--model", str(model), *sizes, *how]) == 0
    return [row["token_ids"] for row in json.loads(capsys.readouterr().out)["results"]]


def test_a_batch_offline_is_scheduled_like_requests_online(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    found = offline(capsys, tiny)
    steps, watched.steps = watched.steps, []
    assert [len(ids) for ids in found] == [LENGTH - 26, TOKENS, TOKENS]
    together = [sorted(running) for running, _, _ in steps]
    assert max(map(len, together)) == 2
    assert [0, 1] in together and [1, 2] in together  # the third joins while the second still writes
    body = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with serving(lambda: LLM(str(tiny), "suffix", dtype="fp32", batch_size=2, max_length=LENGTH)) as server:
        choices = server.post("completions", prompt=list(PROMPTS), **body).json()["choices"]
    assert [choice["token_ids"] for choice in choices] == found
    online = [sorted(running) for running, _, _ in watched.steps]
    assert [0, 1] in online and [1, 2] in online
    assert {(piece, shared) for _, piece, shared in steps} == {(piece, shared) for _, piece, shared in watched.steps}
    assert all(shared for _, _, shared in steps)
