"""Training and trained drafters on a GPU: the loop learns, the writer agrees with the engine, drafts change no text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft.core.shapes.base import Chain, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.engine import Engine, Method
from foredraft.models import Decoder, ModelConfig, random_decoder
from foredraft.models.heads import FeatureHead, settle
from foredraft.runtime import TorchExecutor
from foredraft.train.bulk_generate import Task, write
from tests.engine.runs import finish, request
from tests.train import toys

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
KNOWN = 0.01  # a loss with nothing left to learn: this target repeats itself, which one kind knows from the start
PROMPTS = [[1, 2, 3], list(range(1, 40))]


def target() -> Decoder:
    config = ModelConfig("llama", 61, 32, 6, 4, 2, 8, 48, max_position=128, tied_head=True)
    made = random_decoder(config, torch.float32, "cuda", seed=1)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data *= 4
    return made


def test_every_kind_learns_on_the_gpu(tmp_path: Path) -> None:
    trainer = toys.trainer(target(), tmp_path, toys.DRAFTING, steps=120)
    before = {s.kind.name: s.loss_module(trainer._held_outputs(0, 8)).item() for s in trainer.students}
    assert trainer.run()
    for student in trainer.students:
        now = student.loss_module(trainer._held_outputs(0, 8)).item()
        assert now < max(0.9 * before[student.kind.name], KNOWN)


def test_the_writer_agrees_with_the_engine() -> None:
    decoder = target()
    prompts = [[1, 2, 3], [4] * 9, [7, 8]]
    texts = write(decoder, [Task(p) for p in prompts], 40, {0})
    method = Method("plain", RULES["sample-and-match"])
    for prompt, text in zip(prompts, texts, strict=True):
        each = request(prompt, method, stop_ids=frozenset({0}), max_new_tokens=40)
        assert finish(Engine(TorchExecutor(decoder, 1, 100)), each)[0] == text


@pytest.mark.parametrize("shape", [Chain(4), Eagle2Tree(nodes=8, width=3, depth=3)], ids=str)
@pytest.mark.parametrize("kind", ["eagle3", "eagle", "griffin"])
def test_drafts_change_no_text(kind: str, shape: Chain | Eagle2Tree) -> None:
    decoder = target()
    head, _ = toys.head(decoder, kind)
    settle(head, torch.float32)
    assert isinstance(head, FeatureHead)
    index = torch.full((61,), -1, device="cuda")
    index[:40] = torch.arange(40, device="cuda")
    words = Vocabulary(torch.arange(40, device="cuda"), index)
    drafter = EagleDrafter(head, shape, words, 2, 100, kind)
    spoken = Method(kind, default_rule(drafter.kinds, drafter.topology), drafter)
    plain = Method("plain", RULES["sample-and-match"])
    texts = []
    for method in (spoken, plain):
        requests = [request(prompt, method, i, max_new_tokens=24) for i, prompt in enumerate(PROMPTS)]
        texts.append(finish(Engine(TorchExecutor(decoder, 2, 100)), *requests))
    assert texts[0] == texts[1]
