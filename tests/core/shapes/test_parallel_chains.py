"""DuoDecoding's chains: how many, how long, and which tokens."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.parallel_chains import ParallelChains, chains_used, chains_wanted, round_budget
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.types import Budget, SamplingParams, Sequence
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet


@pytest.mark.parametrize(
    ("first", "second", "budget", "wanted", "used"),
    [
        ([0.3, 0.2, 0.14, 0.1], 0.5, 16, 2, 2),
        ([0.8, 0.1, 0.05], 0.9, 16, 1, 1),
        ([0.25, 0.2, 0.18, 0.12, 0.1, 0.05], 0.3, 16, 5, 4),
    ],
)
def test_how_many_chains(first: list[float], second: float, budget: int, wanted: int, used: int) -> None:
    assert chains_wanted(first, second) == wanted
    assert chains_used(wanted, budget) == used


def test_budgets_have_many_divisors() -> None:
    assert [round_budget(n) for n in (0, 1, 5, 11, 16, 23, 99)] == [0, 1, 4, 8, 16, 16, 24]


def test_every_chain_goes_on_with_the_top_token() -> None:
    model = dirichlet(6, seed=1)
    drafter = ModelDrafter(TableExecutor(model), ParallelChains(12))  # type: ignore[arg-type]
    sequence = Sequence(0, [0, 1], 2, SamplingParams(), 0, budget=Budget(12, 12))
    drafter.begin([sequence])
    tree = drafter.propose([sequence], KeyedRng(*torch.zeros((3, 1), dtype=torch.int64))).tree(0)
    first = model.next_distribution((0, 1))
    order = (-first).argsort()
    after = model.next_distribution((0, 1, int(order[0]))).max()
    k = chains_used(chains_wanted([float(p) for p in first[order]], float(after)), 12)
    assert k > 1 and len(tree.token) == 12 and tree.token[:k] == order[:k].tolist()
    for node in range(k, 12):
        path, above = [], tree.parent[node]
        while above >= 0:
            path.append(tree.token[above])
            above = tree.parent[above]
        assert tree.token[node] == int(model.next_distribution((0, 1, *path[::-1])).argmax())
