"""What captured rounds write at a temperature, enumerated: drafting, drawing and the rule as a capture would run them.

Captured functions make their rng from keys among their inputs; here it is the one that visits every outcome. The host
must not look at values on the way, so rules take the form that they have inside a capture.
"""

from __future__ import annotations

from functools import cache, reduce

import numpy as np
import pytest
from torch import Tensor

from foredraft.core.distributions.tensors import DraftTable
from foredraft.core.host_look import looking_away
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.shapes.base import Chain, Shape
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.engine.greedy import captured
from foredraft.models import Decoder, shallow
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.types import Kind
from tests.train import toys

from .runs import finish, request

TOKENS = 2
PROMPTS = ([0, 1], [1, 1, 0])
CHOSEN, DRAWN = Chain(1, kind=Kind.CHOSEN), Chain(1)
CASES = [
    ("sample-and-match", None, {}),
    ("sample-and-match", CHOSEN, {"top_p": 0.8}),
    ("sample-and-match", Eagle2Tree(nodes=2, width=2, depth=1), {}),
    ("chain", DRAWN, {}),
    ("block", DRAWN, {"presence_penalty": 0.7}),
    ("residual", DRAWN, {"top_k": 2}),
    ("one-hot", CHOSEN, {}),
]


@cache
def target(mates: int = 1) -> Decoder:
    """Of three tokens; two texts side by side have many outcomes, so of two for those."""
    return toys.target(vocab=4 - mates, layers=2, seed=3, sharpness=2.0)


def stepwise_text(decoder: Decoder, prompt: list[int], params: dict[str, float]) -> np.ndarray:
    """The target's own distribution of `TOKENS` tokens with these options, one plain step after another."""
    found = np.zeros((decoder.config.vocab_size,) * TOKENS)

    def run(rng: EnumeratingRng) -> list[int]:
        engine = Engine(TorchExecutor(decoder, 1, 32), lambda sequences: rng)  # type: ignore[arg-type]
        return finish(engine, request(prompt, Method("plain", RULES["sample-and-match"]), **options_of(params)))[0]

    for weight, text in outcomes(run):
        found[tuple(text)] += weight
    return found


def options_of(params: dict[str, float]) -> dict[str, float]:
    return {"max_new_tokens": TOKENS, "temperature": 0.8, **params}


def captured_texts(
    rule: str, shape: Shape | None, params: dict[str, float], mates: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, int]:
    """The distribution of `TOKENS` tokens of each request, and the rounds that went through captured functions."""
    decoder, found, rounds = target(mates), np.zeros((4 - mates,) * TOKENS * mates), 0
    whole = captured._round

    def counted(*args: object) -> object:
        nonlocal rounds
        rounds += 1
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(captured, "_round", counted)

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        for place in ("engine.greedy.sampled", "draft.neural.captured_drafts"):
            monkeypatch.setattr(f"foredraft.{place}.KeyedRng", lambda *keys: rng)
        engine = Engine(GraphExecutor(decoder, mates, 32))
        engine.rng = lambda sequences: rng  # type: ignore[assignment]
        drafter = None if shape is None else ModelDrafter(GraphExecutor(shallow(decoder, 1), mates, 32), shape)
        method = Method("m", RULES[rule], drafter)
        requests = [request(PROMPTS[i], method, i, **options_of(params)) for i in range(mates)]
        with looking_away():
            return tuple(token for text in finish(engine, *requests) for token in text)

    for weight, text in outcomes(run):
        found[text] += weight
    return found, rounds


QUICK = (CASES[3],)  # of those for two requests


@pytest.mark.parametrize(
    ("mates", "rule", "shape", "params"),
    [(1, *case) for case in CASES]
    + [pytest.param(2, *case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
    ids=str,
)
def test_captured_rounds_follow_the_target(
    mates: int, rule: str, shape: Shape | None, params: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn and chosen drafts, every rule that can be captured, truncation and penalties; alone, and two in a batch."""
    found, rounds = captured_texts(rule, shape, params, mates, monkeypatch)
    expected = reduce(np.multiply.outer, [stepwise_text(target(mates), prompt, params) for prompt in PROMPTS[:mates]])
    assert rounds > 0 and np.abs(found - expected).max() < 2e-6


def test_a_wrong_draft_distribution_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured rounds that are told another q than the drafts were drawn from are biased, and this test sees it."""
    right = DraftTable.__init__

    def wrong(self: DraftTable, probs: Tensor, **rest: Tensor | None) -> None:
        right(self, (probs + 0.3) / (1 + 0.3 * probs.shape[-1]), **rest)

    monkeypatch.setattr(DraftTable, "__init__", wrong)
    found, _ = captured_texts("chain", DRAWN, {}, 1, monkeypatch)
    assert np.abs(found - stepwise_text(target(), PROMPTS[0], {})).sum() / 2 > 1e-3
