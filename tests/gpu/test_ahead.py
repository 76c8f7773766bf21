"""Rounds that the device begins by itself, on CUDA: the texts of the eager executor, whoever ends, goes or comes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft.core.rules import RULES, default_rule
from foredraft.core.shape import Chain
from foredraft.draft.ahead import Begun
from foredraft.draft.model import ModelDrafter
from foredraft.engine import Engine, Method, Sharing
from foredraft.engine.ahead import RunAhead
from foredraft.models import shallow
from foredraft.runtime import TorchExecutor
from foredraft.runtime.graphs import GraphExecutor
from tests.engine.runs import finish, request

from .test_graphs import decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12], [9, 9, 9]]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was begun ahead and used."""
    found: list[str] = []
    collect, holds = RunAhead.collect, Begun.holds

    def collected(self: RunAhead, *args: Any) -> Any:
        made = collect(self, *args)
        found.extend(["plain"] if made is not None else [])
        return made

    def held(self: Begun, *args: Any) -> bool:
        found.extend(["draft"] if holds(self, *args) else [])
        return holds(self, *args)

    monkeypatch.setattr(RunAhead, "collect", collected)
    monkeypatch.setattr(Begun, "holds", held)
    return found


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_texts_are_those_of_the_steps(drafts: bool, reuse: bool, taken: list[str]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    texts = {}
    for make in (TorchExecutor, GraphExecutor):
        model = decoder()
        method = Method("plain", RULES["sample-and-match"])
        if drafts:
            drafter = ModelDrafter(make(shallow(model, 2), 3, 400), Chain(4))
            method = Method("model", default_rule(drafter.kinds, drafter.topology), drafter)
        engine = Engine(make(model, 3, 400), sharing=Sharing(reuse=reuse))
        whole = finish(engine, request(PROMPTS[1], method, 9, max_new_tokens=160))[0]
        ends = request(PROMPTS[1], method, 1, frozenset({whole[40]}), max_new_tokens=160)
        goes, stays = (request(PROMPTS[i], method, i, max_new_tokens=160) for i in (2, 0))
        for each in (ends, goes, stays):
            engine.add(each)
        for _ in range(20):
            engine.step()
        engine.cancel(goes)
        kept = goes.sequence.output[:20]
        later = finish(engine, request([*PROMPTS[2], *kept], method, 3, max_new_tokens=160))[0]
        texts[make] = [whole, ends.sequence.output, kept, stays.sequence.output, later]
    assert texts[GraphExecutor] == texts[TorchExecutor]
    assert taken.count("draft" if drafts else "plain") > 30
