"""Drafters with trained heads, untrained: whatever they draft, the target's text and distribution come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.control.exit_choice import ExitChoice
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.shapes.base import Chain, Shape, StaticTree, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.shapes.stops import Confidence, PathConfidence
from foredraft.core.verify import RULES, default_rule
from foredraft.draft import Drafter
from foredraft.draft.neural.blocks.falcon import FalconDrafter
from foredraft.draft.neural.blocks.forerunner import ForerunnerDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.draft.neural.kangaroo import KangarooDrafter
from foredraft.draft.neural.medusa import MedusaDrafter
from foredraft.draft.neural.self_drafting import SdsatDrafter
from foredraft.draft.neural.sorted_draft import SortedDrafter
from foredraft.engine import Engine, Method
from foredraft.models import Decoder
from foredraft.models.heads import (
    FalconHead,
    FeatureHead,
    ForerunnerHead,
    KangarooHead,
    RecurrentHead,
    SdsatHead,
    SortedDraft,
)
from foredraft.runtime import Placement, TorchExecutor
from foredraft.types.drafts import NO_BUDGET
from tests.engine.runs import finish, request

from . import toys

SHAPES: list[Shape] = [
    Chain(3),
    Chain(3, Confidence(0.2)),
    Chain(3, PathConfidence(0.1)),
    Eagle2Tree(nodes=8, width=3, depth=3),
    StaticTree((2, 2, 1)),
    StaticTree((2, 1, 1), drawn=True),
]
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12], list(range(1, 40))]


def drafter(
    decoder: Decoder,
    kind: str,
    shape: Shape,
    words: int = 40,
    slots: int = 4,
    target: TorchExecutor | None = None,
) -> Drafter:
    head, _ = toys.head(decoder, kind, words)
    index = torch.full((decoder.config.vocab_size,), -1)
    index[:words] = torch.arange(words)
    vocabulary = Vocabulary(torch.arange(words), index)
    if isinstance(head, FalconHead):
        return FalconDrafter(head, shape, vocabulary, slots, 100)
    if isinstance(head, ForerunnerHead) and target is not None:
        return ForerunnerDrafter(head, target, shape, vocabulary)
    if isinstance(head, SdsatHead) and target is not None:
        return SdsatDrafter(head, target, shape)
    if isinstance(head, SortedDraft) and isinstance(shape, Chain):
        choice = ExitChoice(len(head.exits), lambda rows: 1.0 + 0.1 * rows)
        return SortedDrafter(head, shape, vocabulary, slots, 100, choice, 0.2)
    if isinstance(head, FeatureHead):
        return EagleDrafter(head, shape, vocabulary, slots, 100, kind)
    if isinstance(head, RecurrentHead):
        return MedusaDrafter(head, shape, vocabulary, kind)
    if isinstance(head, KangarooHead) and isinstance(shape, Chain) and target is not None:
        return KangarooDrafter(head, target, shape, vocabulary)
    return ModelDrafter(TorchExecutor(head, slots, 100), shape, decoder.config.vocab_size, kind, vocabulary)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    decoder = toys.target()
    engine = Engine(TorchExecutor(decoder, 4, 100))
    method = Method("plain", RULES["sample-and-match"])
    return finish(engine, *(request(p, method, i, max_new_tokens=14) for i, p in enumerate(PROMPTS)))


# Every kind drafts a chain and a tree, and every shape has kinds of its own; the whole product is slow.
PAIRS = [
    pytest.param(kind, shape, marks=() if j in (i % 3, 3 + i % 3) else pytest.mark.slow)
    for i, kind in enumerate(toys.DRAFTING)
    for j, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("kind", "shape"), PAIRS, ids=str)
def test_greedy_identity(kind: str, shape: Shape, plain: list[list[int]]) -> None:
    """A batch of different lengths; the same requests one by one; a drafter that is used again afterwards."""
    decoder = toys.target()
    executor = TorchExecutor(decoder, 4, 100)
    made = drafter(decoder, kind, shape, target=executor)
    method = Method(kind, default_rule(made.kinds, made.topology), made)
    engine = Engine(executor)
    requests = [request(p, method, i, max_new_tokens=14) for i, p in enumerate(PROMPTS)]
    assert finish(engine, *requests) == plain
    assert sum(r.stats.drafted for r in requests) > 0
    for i, prompt in enumerate(PROMPTS[:2]):
        assert finish(engine, request(prompt, method, 10 + i, max_new_tokens=14)) == [plain[i]]


@pytest.mark.parametrize("shape", [Chain(3), StaticTree((2, 1), drawn=True)], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "falcon"])
def test_a_prompt_of_one_token_holds_up_nobody(kind: str, shape: Shape) -> None:
    """It has no state to draft from yet; the others draft on, and all texts are the target's."""
    prompts, decoder = [PROMPTS[2], [7], PROMPTS[1]], toys.target()
    plain = Method("plain", RULES["sample-and-match"])
    usual = finish(
        Engine(TorchExecutor(decoder, 4, 100)),
        *(request(p, plain, i, max_new_tokens=14) for i, p in enumerate(prompts)),
    )
    executor = TorchExecutor(decoder, 4, 100)
    made = drafter(decoder, kind, shape, target=executor)
    engine, method = Engine(executor), Method(kind, default_rule(made.kinds, made.topology), made)
    first, *others = [request(p, method, i, max_new_tokens=14) for i, p in enumerate(prompts)]
    engine.add(first)
    engine.step()
    drafted = first.stats.drafted
    for other in others:
        engine.add(other)
    engine.step()
    assert first.stats.drafted > drafted and others[0].stats.drafted == 0
    while not engine.scheduler.idle:
        engine.step()
    assert [each.sequence.output for each in (first, *others)] == usual


def test_an_oracle_is_always_right() -> None:
    """A fast drafter that is the target itself has every draft accepted."""
    decoder = toys.target(layers=3)
    from foredraft.models.heads import FastDraft, HeadSpec

    spec = HeadSpec("fastdraft", toys.identity(decoder), 61, (), 3)
    head = FastDraft(decoder, spec, torch.arange(61))
    head.copy_layers(decoder, range(3))
    made = ModelDrafter(TorchExecutor(head.requires_grad_(False), 1, 100), Chain(4), 61)
    each = request([1, 2, 3], Method("m", RULES["residual"], made), max_new_tokens=20)
    finish(Engine(TorchExecutor(decoder, 1, 100)), each)
    assert each.stats.steps == 4  # five tokens a round


DISTRIBUTION_TOKENS = 2


ENUMERATED: list[Shape] = [Chain(2), Eagle2Tree(nodes=3, width=2, depth=2), StaticTree((2,), drawn=True)]
READING = ["eagle3", "griffin", "dovetail", "mlp-speculator", "kangaroo", "falcon", "sdsat", "s2d", "forerunner"]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        pytest.param(kind, shape, marks=() if j in (0, i % 3) else pytest.mark.slow)  # a chain, and a tree where i % 3
        for i, kind in enumerate(READING)
        for j, shape in enumerate(ENUMERATED)
    ],
    ids=str,
)
def test_exact_distribution_with_a_reduced_vocabulary(kind: str, shape: Shape) -> None:
    """The distribution of two tokens, rng falling on every side; the drafter knows three of the target's four ids."""
    decoder = toys.target(vocab=4, seed=3, sharpness=2.0)
    distribution = np.zeros((4,) * DISTRIBUTION_TOKENS)
    reference = np.zeros_like(distribution)

    def text(build: Callable[[TorchExecutor], Drafter | None]) -> Callable[[EnumeratingRng], list[int]]:
        def run(rng: EnumeratingRng) -> list[int]:
            executor = TorchExecutor(decoder, 1, 32)
            made = build(executor)
            rule = RULES["sample-and-match"] if made is None else default_rule(made.kinds, made.topology)
            engine = Engine(executor, lambda sequences: rng)
            each = request([0, 1], Method("m", rule, made), max_new_tokens=DISTRIBUTION_TOKENS, temperature=1.0)
            return finish(engine, each)[0]

        return run

    for weight, ids in outcomes(text(lambda executor: drafter(decoder, kind, shape, 3, 1, executor))):
        distribution[tuple(ids)] += weight
    for weight, ids in outcomes(text(lambda executor: None)):
        reference[tuple(ids)] += weight
    assert abs(distribution.sum() - 1) < 1e-6
    assert np.abs(distribution - reference).max() < 2e-6


def test_a_prompt_of_one_token() -> None:
    decoder = toys.target()
    for kind in ("eagle3", "medusa"):
        made = drafter(decoder, kind, Chain(3))
        method = Method(kind, RULES["residual"], made)
        out = finish(Engine(TorchExecutor(decoder, 4, 100)), request([5], method, max_new_tokens=9))
        alone = finish(
            Engine(TorchExecutor(decoder, 4, 100)), request([5], Method("p", RULES["residual"]), max_new_tokens=9)
        )
        assert out == alone


def test_shared_layers_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kangaroo: verification starts at the exit layer, and only rounds without drafts start at the bottom."""
    decoder = toys.target()
    executor = TorchExecutor(decoder, 1, 100)
    made = drafter(decoder, "kangaroo", Chain(3), slots=1, target=executor)
    begun: list[range] = []
    forward_layers = TorchExecutor.forward_layers

    def watch(self: TorchExecutor, placement: Placement, hidden: Tensor, layers: range, taps: Any = ()) -> Any:
        if self is executor:
            begun.append(layers)
        return forward_layers(self, placement, hidden, layers, taps)

    monkeypatch.setattr(TorchExecutor, "forward_layers", watch)
    each = request([1, 2, 3], Method("m", RULES["residual"], made), max_new_tokens=12)
    finish(Engine(executor), each)
    whole, rest, shared = range(6), range(2, 6), range(2)
    assert begun.count(rest) + begun.count(whole) - 1 == each.stats.steps  # one whole pass is the prompt's
    assert begun.count(rest) > 0 and begun.count(shared) == each.stats.drafted + begun.count(rest)


@pytest.mark.parametrize("kind", ["eagle3", "kangaroo"])
def test_rounds_without_a_budget_lose_nothing(kind: str) -> None:
    """Drafting that is asked for nothing for a while goes on afterwards where the text is."""
    decoder = toys.target()
    executor = TorchExecutor(decoder, 1, 100)
    made = drafter(decoder, kind, Chain(3), slots=1, target=executor)
    method = Method(kind, RULES["residual"], made)
    each = request([1, 2, 3, 4], method, max_new_tokens=20)
    engine = Engine(executor)
    engine.add(each)
    propose, turn = made.propose, 0

    def sometimes(sequences: Any, rng: Any) -> Any:
        nonlocal turn
        turn += 1
        if turn % 3:
            for sequence in sequences:
                sequence.budget = NO_BUDGET
        return propose(sequences, rng)

    made.propose = sometimes  # type: ignore[method-assign]
    while not engine.scheduler.idle:
        engine.step()
    alone = finish(
        Engine(TorchExecutor(decoder, 1, 100)), request([1, 2, 3, 4], Method("p", RULES["residual"]), max_new_tokens=20)
    )
    assert each.sequence.output == alone[0] and each.stats.drafted > 0
