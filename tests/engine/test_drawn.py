"""Sampled texts on the host: tokens that the library draws on the path give the verdicts of sample-and-match."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.distributions.masks import pack_bits
from foredraft.core.shapes.base import Chain, Shape
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method, Request
from foredraft.engine.greedy import drawn
from foredraft.engine.method_group import DAMAGED
from foredraft.models import native, shallow
from foredraft.runtime import TorchExecutor
from tests.train import toys

from .runs import finish, request
from .test_fast_path import RulesOnly

pytestmark = pytest.mark.skipif(native.compiled() is None, reason="needs a C++ compiler")
MATCH = RULES["sample-and-match"]
VOCAB = 61  # of `toys.target`
SHAPES = {"plain": None, "chain": Chain(3), "tree": Eagle2Tree(nodes=8, width=3, depth=3)}


class Odd:
    """A grammar whose texts have odd tokens alone."""

    def start(self) -> Odd:
        return self

    def fill(self, output: list[int], tokens: list[int], parents: list[int], bits: torch.Tensor) -> None:
        bits[:] = pack_bits((torch.arange(VOCAB) % 2 == 1)[None])


PARAMS: list[dict[str, object]] = [
    {"temperature": 0.9},
    {"temperature": 1.2, "top_p": 0.8, "logprobs": 2},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 12, "presence_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 0.7, "logit_bias": {3: 4.0, 7: -100.0}},
    {"temperature": 1.0, "grammar": Odd(), "min_p": 0.02},
    {"temperature": 0.0, "frequency_penalty": 0.7},
]


def run(shape: Shape | None, fast: bool, which: list[int]) -> tuple[list[list[int]], list[Request]]:
    torch.manual_seed(5)
    decoder = toys.target()
    drafter = None if shape is None else ModelDrafter(TorchExecutor(shallow(decoder, 1), len(which), 128), shape)
    engine = Engine(TorchExecutor(decoder, len(which), 128))
    if not fast:
        engine.fast_path = RulesOnly(engine.executor, engine.sampler)
    method = Method("model", MATCH, drafter)
    made = [request([1, 2, i + 3], method, i, max_new_tokens=14, seed=i, **PARAMS[i]) for i in which]
    return finish(engine, *made), made


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_verdicts_of_the_rule(shape: Shape | None, monkeypatch: pytest.MonkeyPatch) -> None:
    every = list(range(len(PARAMS)))
    expected, before = run(shape, False, every)
    draws, real = [], drawn.Drawn.__getitem__
    monkeypatch.setattr(drawn.Drawn, "__getitem__", lambda self, row: draws.append(row) or real(self, row))
    found, after = run(shape, True, every)
    assert found == expected and len(draws) >= len(before[0].sequence.output)
    assert [r.reasons for r in after] == [r.reasons for r in before]
    assert [r.stats.accepted for r in after] == [r.stats.accepted for r in before]
    assert after[1].logprobs == before[1].logprobs
    assert all(token % 2 for token in found[5])


def test_a_text_does_not_depend_on_who_is_beside_it() -> None:
    together, _ = run(Chain(3), True, list(range(len(PARAMS))))
    assert [run(Chain(3), True, [i])[0][0] for i in range(len(PARAMS))] == together


def test_rows_without_a_distribution_end_their_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    real = drawn.Drawn.__getitem__

    def spoilt(self: drawn.Drawn, row: int, /) -> int:
        if self.request.id == 1 and len(self.request.sequence.output) >= 4:
            self.logits = lambda row: torch.full((VOCAB,), torch.nan)
        return real(self, row)

    monkeypatch.setattr(drawn.Drawn, "__getitem__", spoilt)
    _, (first, second) = run(None, True, [0, 1])
    assert first.error is None and len(first.sequence.output) == 14
    assert second.error == DAMAGED and len(second.sequence.output) == 4
