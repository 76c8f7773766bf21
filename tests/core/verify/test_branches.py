"""Trees that start from the target's own tokens: the published choice is biased (B8), the exact one is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.core.distributions.tensors import DenseDistribution
from foredraft.core.rng.keyed import Purpose, Rng
from foredraft.core.verify import RULES
from foredraft.types import Kind
from tests.kit.drafting import Draft
from tests.kit.exactness import Method, accepted_tokens, distortion, first_tokens, judge_of
from tests.kit.tables import Prefix, TableModel, dirichlet

SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT


def b8_target() -> TableModel:
    """Roots .6 / .4; a tail token is accepted with .2 after the first root and .9 after the second."""
    distributions = {(): (0.6, 0.4), (0,): (0.2, 0.8), (1,): (0.9, 0.1)}
    return TableModel(2, lambda prefix: np.array(distributions.get(prefix, (0.5, 0.5))))


def fork(target: TableModel, tail: TableModel) -> Method:
    """Two roots drawn from the target without replacement, one drafted token after each."""

    def draw(rng: Rng, distribution: np.ndarray, turn: int) -> int:
        row = DenseDistribution(torch.from_numpy(distribution)[None])
        return int(rng.draw(row, Purpose.DRAFT, torch.tensor([0]), turn)[0])

    def draft(rng: Rng) -> Draft:
        first = draw(rng, target.next_distribution(), 0)
        left = target.next_distribution().copy()
        left[first] = 0.0
        roots: Prefix = (first, draw(rng, left / left.sum(), 1))
        tails = tuple(draw(rng, tail.next_distribution((root,)), 2 + root) for root in roots)
        return Draft(roots + tails, (-1, -1, 0, 1), (1,) * 4, (SWOR,) * 4)

    return Method(draft, judge_of(RULES["best-branch"], target, tail))


def test_b8_of_the_published_choice() -> None:
    sure = TableModel(2, lambda prefix: np.array((1.0, 0.0)))  # the tail token is always 0
    method = fork(b8_target(), sure)
    assert first_tokens(method, b8_target(), 1) == pytest.approx([0.176, 0.824], abs=1e-12)
    assert distortion(method, b8_target(), 1) == pytest.approx(0.424, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_one_branch_is_the_exact_use_of_the_same_tree(seed: int) -> None:
    target, tail = dirichlet(2, seed), dirichlet(2, 50 + seed)
    drafts = fork(target, tail).draft
    published = Method(drafts, judge_of(RULES["best-branch"], target, tail))
    for batched in (False, True):
        exact = Method(drafts, judge_of(RULES["one-branch"], target, tail, batched=batched))
        assert distortion(exact, target, 3) < 1e-12
    assert distortion(published, target, 3) > 1e-3
    assert accepted_tokens(published) > accepted_tokens(exact)  # what the bias buys
