"""Rounds that the device begins by itself, on CUDA: the texts of the eager executor, whoever ends, goes or comes."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method, Sharing
from foredraft.models import shallow
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from tests.engine.guesses import comings_and_goings, more_than_fit, watch

from .test_forerunner import method_of
from .test_graphs import decoder, drafter

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12]]


@pytest.mark.parametrize("drafts", ["", "model", "eagle3", "forerunner"])
@pytest.mark.parametrize("reuse", [False, True])
def test_texts_are_those_of_the_steps(drafts: str, reuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    seen, texts = watch(monkeypatch), {}
    for make in (TorchExecutor, GraphExecutor):
        model = decoder()
        executor = make(model, 3, 400)
        method = Method("plain", RULES["sample-and-match"])
        if drafts == "forerunner":
            method, _ = method_of(executor, Chain(4))
        elif drafts:
            deep = ModelDrafter(make(shallow(model, 2), 3, 400), Chain(4))
            made = deep if drafts == "model" else drafter(model, drafts, Chain(4), make)
            method = Method(drafts, default_rule(made.kinds, made.topology), made)
        engine = Engine(executor, sharing=Sharing(reuse=reuse))
        texts[make] = comings_and_goings(engine, method, PROMPTS, 160)
    assert texts[GraphExecutor] == texts[TorchExecutor]
    assert seen["draft taken" if drafts else "plain taken"] > 30


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_many_of_whom_somebody_ends_at_every_few_steps(heat: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    seen, texts = watch(monkeypatch), {}
    for make in (TorchExecutor, GraphExecutor):
        engine = Engine(make(decoder(), 20, 400))
        texts[make] = more_than_fit(engine, Method("plain", RULES["sample-and-match"]), PROMPTS, heat)[0]
    assert texts[GraphExecutor] == texts[TorchExecutor]
    assert seen["plain taken"] > 80 and seen["plain dropped"] < 8
