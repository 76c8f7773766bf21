"""Captured rounds of a forerunner head, which draft in the target's own slots: node for node what the steps draft.

Functions are taped here; `tests/gpu/test_forerunner.py` has the same with CUDA graphs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import default_rule
from foredraft.draft.neural.blocks import target_texts
from foredraft.draft.neural.blocks.forerunner import ForerunnerDrafter
from foredraft.engine import Engine, Method, Request, Sharing
from foredraft.models.heads import ForerunnerHead
from foredraft.runtime import TorchExecutor
from foredraft.types import Kind
from tests.train import toys

from .drafted import Drafted, drafts_of
from .runs import finish, request
from .test_captured import PROMPTS, WORDS, Make, eager, keys, taped, target

SHAPES: list[Shape] = [Chain(4, kind=Kind.CHOSEN), Eagle2Tree(nodes=9, width=3, depth=4)]
WHOLE = ("context", "copy", "correction")


def head(decoder: Any, *off: str) -> ForerunnerHead:
    made = toys.forerunner(decoder)
    made.context, made.copies, made.corrects = (name not in off for name in WHOLE)
    return made


def run(
    make: Make,
    shape: Shape,
    monkeypatch: pytest.MonkeyPatch,
    *off: str,
    sharing: Sharing | None = None,
    tokens: int = 24,
) -> tuple[list[list[int]], Drafted, Engine]:
    torch.manual_seed(5)
    decoder = target()
    executor = make(decoder)
    drafter = ForerunnerDrafter(head(decoder, *off), executor, shape, WORDS)
    method = Method("forerunner", default_rule(drafter.kinds, drafter.topology), drafter)
    requests = [request(prompt, method, i, max_new_tokens=tokens + 3 * i) for i, prompt in enumerate(PROMPTS)]
    with monkeypatch.context() as patch:
        drafted = drafts_of(drafter, patch)
        engine = Engine(executor, sharing=sharing)
        return finish(engine, *requests), drafted, engine


def assert_same(shape: Shape, monkeypatch: pytest.MonkeyPatch, *off: str, **options: Any) -> Engine:
    expected, before, _ = run(eager, shape, monkeypatch, *off, **options)
    found, after, engine = run(taped, shape, monkeypatch, *off, **options)
    assert found == expected and after == before and len(before) > 20
    return engine


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("off", [(), *((name,) for name in WHOLE)], ids=str)
def test_every_node_is_that_of_the_steps(shape: Shape, off: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests on three slots, which are used again: batches of one to three of different lengths."""
    graphs = assert_same(shape, monkeypatch, *off).executor.graphs
    assert keys(graphs, "draft") and keys(graphs, "features") and graphs.replayed > graphs.taped


def test_texts_grow_out_of_what_a_round_looks_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size has graphs of its own; the longest text of a batch decides."""
    monkeypatch.setattr(target_texts, "REACHES", (16, 32, 48, 64))
    graphs = assert_same(SHAPES[1], monkeypatch, tokens=32).executor.graphs
    assert {key[1][1] for key in keys(graphs, "draft")} >= {32, 48, 64}


def test_too_many_keys_go_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_texts, "MOST_KEYS", 0)
    assert not keys(assert_same(SHAPES[1], monkeypatch).executor.graphs, "draft")


def test_slots_that_keep_earlier_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that goes on with what a slot holds is read from there on; its tokens are taken up all the same."""
    assert_same(SHAPES[1], monkeypatch, sharing=Sharing(reuse=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_requests_that_begin_again_and_long_absences(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is put back in the middle; another goes on without drafts for longer than a round reads."""

    def texts(make: Make) -> tuple[list[list[int]], Drafted]:
        torch.manual_seed(5)
        decoder = target()
        executor = make(decoder)
        drafter = ForerunnerDrafter(head(decoder), executor, shape, WORDS)
        method = Method("forerunner", default_rule(drafter.kinds, drafter.topology), drafter)
        requests = [request(prompt, method, i, max_new_tokens=60) for i, prompt in enumerate(PROMPTS[:3])]
        resting = range(4, 24)
        with monkeypatch.context() as patch:
            drafted, engine, step = drafts_of(drafter, patch), Engine(executor), 0
            patch.setattr(drafter, "rests", lambda sequences: step in resting)
            for each in requests:
                engine.add(each)
            while not engine.scheduler.idle:
                engine.step()
                step += 1
                if step in (3, 27):
                    put_back(engine, requests[1])
        return [each.sequence.output for each in requests], drafted

    assert texts(eager) == texts(taped)


def put_back(engine: Engine, request: Request) -> None:
    """As where memory is short: it waits again, and begins once more from its tokens."""
    engine.scheduler._put_back(request)
    engine.put_back([request])


def test_a_device_that_knows_a_text_is_given_what_is_new() -> None:
    decoder = target()
    executor = taped(decoder)
    texts = target_texts.DeviceTexts(executor)
    sequence = request(list(range(1, 40)), Method("plain", default_rule(frozenset(), Chain().topology)), 7).sequence
    sequence.slot = 2
    assert texts.unread([sequence]) == [[39]] and texts.tokens[2, :39].tolist() == [*range(1, 39), 0]
    texts.enter([sequence])
    sequence.tokens += [5, 6]
    assert texts.unread([sequence]) == [[5, 6]]
    texts.forget([sequence])
    assert texts.unread([sequence]) == [[6]] and texts.tokens[2, 38:41].tolist() == [39, 5, 0]


def test_host_executors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept on a device that captures nothing."""
    decoder = target()
    executor = TorchExecutor(decoder, 3, 128)
    drafter = ForerunnerDrafter(head(decoder), executor, SHAPES[1], WORDS)
    method = Method("forerunner", default_rule(drafter.kinds, drafter.topology), drafter)
    finish(Engine(executor), request(PROMPTS[0], method, 0, max_new_tokens=8))
    assert drafter._texts is None
