"""The greedy fast path is an optimisation of the rules: with it and without it the loop gives the same verdicts."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES, Rule, default_rule
from foredraft.core.verify.lossy.judge import judge
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method, Request
from foredraft.engine.greedy.fast_path import GreedyFastPath
from foredraft.models import shallow
from tests.train import toys

from .runs import finish, request
from .test_captured import PROMPTS, Make, eager, taped


class RulesOnly(GreedyFastPath):
    """Takes nothing, so that every verdict is the rule's own."""

    def forward(self, groups, steady):  # type: ignore[no-untyped-def]
        return groups

    def verify(self, group, case):  # type: ignore[no-untyped-def]
        return False


def run(make: Make, shape: Shape, rule: Rule | None, fast: bool) -> tuple[list[list[int]], list[Request]]:
    torch.manual_seed(5)
    decoder = toys.target()
    drafter = ModelDrafter(make(shallow(decoder, 1)), shape)
    method = Method("model", rule or default_rule(drafter.kinds, drafter.topology), drafter)
    engine = Engine(make(decoder))
    if not fast:
        engine.fast_path = RulesOnly(engine.executor, engine.sampler)
    requests = [request(prompt, method, i, max_new_tokens=12) for i, prompt in enumerate(PROMPTS[:3])]
    return finish(engine, *requests), requests


CHAIN, TREE = Chain(3), Eagle2Tree(nodes=6, width=2, depth=3)
LENIENT = judge(lambda row: row.sum(dim=-1), 0.0)
CASES = [
    *((name, CHAIN, RULES[name]) for name in ("greedy", "sample-and-match", "residual", "block")),
    ("tree", TREE, None),
    ("judge on a chain", CHAIN, LENIENT),
    ("judge on a tree", TREE, LENIENT),
]


@pytest.mark.parametrize("make", [eager, taped], ids=["host", "captured"])
@pytest.mark.parametrize(("shape", "rule"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_fast_path_gives_the_verdicts_of_the_rule(shape: Shape, rule: Rule | None, make: Make) -> None:
    (expected, before), (found, after) = run(eager, shape, rule, fast=False), run(make, shape, rule, fast=True)
    assert found == expected
    assert [r.reasons for r in after] == [r.reasons for r in before]
    assert [r.stats.accepted for r in after] == [r.stats.accepted for r in before]
