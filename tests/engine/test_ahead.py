"""Rounds that begin before the host knows the last answer: the same texts, and what was guessed wrong is dropped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from foredraft.core.rules import RULES, default_rule
from foredraft.core.shape import Chain
from foredraft.draft.ahead import Begun
from foredraft.draft.model import ModelDrafter
from foredraft.engine import Engine, Method, Request
from foredraft.engine.ahead import RunAhead
from foredraft.models import shallow
from tests.train import toys

from .runs import finish, request
from .test_recorded import PROMPTS, Make, counts, eager, taped

PLAIN = Method("plain", RULES["sample-and-match"])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a guess was taken, and how often not."""
    found: Counter[str] = Counter()

    def watch(owner: type, name: str, label: str) -> None:
        asked = getattr(owner, name)

        def answer(self: Any, *args: Any) -> Any:
            had = not isinstance(self, RunAhead) or self.guess is not None
            made = asked(self, *args)
            if had:
                found[f"{label} {'taken' if made else 'dropped'}"] += 1
            return made

        monkeypatch.setattr(owner, name, answer)

    watch(RunAhead, "collect", "plain")
    watch(Begun, "holds", "draft")
    return found


def engine_of(make: Make) -> tuple[Engine, Method]:
    torch.manual_seed(5)
    decoder = toys.target()
    made = ModelDrafter(make(shallow(decoder, 1)), Chain(4))
    return Engine(make(decoder)), Method("model", default_rule(made.kinds, made.topology), made)


def test_one_request_is_always_ahead(seen: Counter[str]) -> None:
    expected = finish(engine_of(eager)[0], request(PROMPTS[0], PLAIN, max_new_tokens=40))
    assert finish(engine_of(taped)[0], request(PROMPTS[0], PLAIN, max_new_tokens=40)) == expected
    assert seen == {"plain taken": 38}  # all but the one that is called and the one that is recorded


def test_chains_are_drafted_ahead(seen: Counter[str]) -> None:
    def run(make: Any) -> tuple[list[list[int]], list[Request]]:
        engine, method = engine_of(make)
        requests = [request(PROMPTS[i], method, i, max_new_tokens=60) for i in range(2)]
        return finish(engine, *requests), requests

    expected, before = run(eager)
    found, after = run(taped)
    assert found == expected and [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert seen["draft taken"] > 5 > seen["draft dropped"]
    assert any(r.stats.accepted > r.stats.steps for r in after)  # whole chains stood, so two tokens were unread


def test_who_ends_or_comes_leaves_no_trace(seen: Counter[str]) -> None:
    """One request ends at a stop token, one is cancelled, one comes later to a slot that was written ahead."""

    def run(make: Any) -> list[list[int]]:
        engine, _ = engine_of(make)
        whole = finish(engine_of(eager)[0], request(PROMPTS[1], PLAIN, max_new_tokens=40))[0]
        ends = request(PROMPTS[1], PLAIN, 1, frozenset({whole[12]}), max_new_tokens=40)
        goes, stays = (request(PROMPTS[i], PLAIN, i, max_new_tokens=40) for i in (2, 0))
        for each in (ends, goes, stays):
            engine.add(each)
        for _ in range(9):
            engine.step()
        engine.cancel(goes)
        for _ in range(8):
            engine.step()
        later = request(PROMPTS[4], PLAIN, 4, max_new_tokens=40)
        finish(engine, later)
        return [each.sequence.output for each in (ends, goes, stays, later)]

    assert run(taped) == run(eager)
    assert seen["plain taken"] > 20 and seen["plain dropped"] >= 2


def test_nobody_runs_ahead_of_requests_that_wait(seen: Counter[str]) -> None:
    engine, _ = engine_of(taped)
    for i in range(4):  # of which three fit
        engine.add(request(PROMPTS[i], PLAIN, i, max_new_tokens=30))
    for _ in range(20):
        engine.step()
    assert not seen
