"""TETRIS: the heap and the tensor form agree and are optimal; the shifted score keeps sampling targets exact."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from foredraft.core.distributions.tensors import DenseDistribution
from foredraft.core.rng.enumerating import distribution_of_outcomes
from foredraft.core.rng.keyed import Purpose, Rng
from foredraft.core.trees.layout import trees
from foredraft.core.trees.select import (
    NEVER,
    best_lengths,
    best_lengths_by_heap,
    best_nodes,
    best_nodes_by_heap,
    keep_best,
    masked,
    own_scores,
    shifted_scores,
    tetris,
)
from foredraft.core.verify import RULES
from foredraft.types import Kind
from tests.kit.drafting import Draft
from tests.kit.exactness import Method, distortion, judge_of
from tests.kit.tables import G1_DRAFT, G1_TARGET, Prefix, TableModel, dirichlet

SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT


def test_the_spec_vector() -> None:
    log_q = torch.tensor([[0.9, 0.8, 0.7], [0.5, 0.9, 0.9], [0.95, 0.2, 0.9]]).log()
    assert best_lengths(own_scores(log_q), 5).tolist() == [3, 1, 1]
    assert best_lengths_by_heap(own_scores(log_q).tolist(), 5) == [3, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_both_forms_agree_and_are_optimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, width, capacity = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(0, 8))
    accept = rng.choice([1.0, 0.9, 0.5, 0.3], (batch, width))  # ties and ones included
    score = own_scores(torch.from_numpy(accept).log())
    lengths = best_lengths(score, capacity)
    assert lengths.tolist() == best_lengths_by_heap(score.tolist(), capacity)
    assert int(lengths.sum()) == min(capacity, batch * width)
    value = np.cumprod(accept, axis=1)

    def worth(choice: tuple[int, ...]) -> float:
        return sum(float(value[i, :n].sum()) for i, n in enumerate(choice))

    best = max(worth(c) for c in product(range(width + 1), repeat=batch) if sum(c) <= capacity)
    assert worth(tuple(lengths.tolist())) == pytest.approx(best)


def test_a_sure_token_is_never_taken_without_the_one_before_it() -> None:
    score = own_scores(torch.zeros((3, 4)))  # every token is certain, all scores are equal
    assert best_lengths(score, 5).tolist() == best_lengths_by_heap(score.tolist(), 5) == [2, 2, 1]


def test_padding_and_what_follows_the_end_are_out() -> None:
    ends = torch.tensor([[False, True, False], [False, False, False]])
    score = masked(torch.zeros((2, 3)), torch.tensor([3, 1]), ends)
    assert score.tolist() == [[0, 0, NEVER], [0, NEVER, NEVER]]
    assert best_lengths(score, 9).tolist() == best_lengths_by_heap(score.tolist(), 9) == [2, 1]


def test_nothing_fits_into_no_budget() -> None:
    score = own_scores(torch.full((2, 3), -0.1))
    assert best_lengths(score, 0).tolist() == best_lengths_by_heap(score.tolist(), 0) == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_shifted_scores_never_rise_along_a_chain(seed: int) -> None:
    distribution = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(4), (3, 5)))
    own = distribution.gather(2, torch.randint(0, 4, (3, 5, 1), generator=torch.Generator().manual_seed(seed)))[
        :, :, 0
    ].log()
    score = shifted_scores(own, distribution.amax(dim=2).log())
    assert bool((score.diff(dim=1) <= 1e-12).all())


def test_sampling_targets_need_the_shifted_score() -> None:
    log_q, length = torch.zeros((1, 2)), torch.tensor([2])
    with pytest.raises(ValueError, match="log_top"):
        tetris(log_q, None, length, 1)
    assert tetris(log_q, None, length, 1, sampling=False).tolist() == [1]


# --- exactness: two requests share a budget, seen from the first one ------------------------------------------------


def shared(target: TableModel, drafter: TableModel, depth: int, capacity: int, shifted: bool) -> Method:
    """Both requests draft `depth` tokens from one distribution; the budget cuts the first one."""

    def chain(rng: Rng) -> tuple[Prefix, list[float], list[float]]:
        text: Prefix = ()
        own, top = [], []
        for turn in range(depth):
            distribution = drafter.next_distribution(text)
            row = DenseDistribution(torch.from_numpy(distribution)[None])
            text = (*text, int(rng.draw(row, Purpose.DRAFT, torch.tensor([turn]))[0]))
            own.append(float(np.log(distribution[text[-1]])))
            top.append(float(np.log(distribution.max())))
        return text, own, top

    def draft(rng: Rng) -> Draft:
        (text, own, top), (_, other_own, other_top) = chain(rng), chain(rng)
        log_q, log_top = torch.tensor([own, other_own]), torch.tensor([top, other_top])
        kept = int(tetris(log_q, log_top, torch.tensor([depth, depth]), capacity, sampling=shifted)[0])
        return Draft(text[:kept], tuple(range(-1, kept - 1)), (1,) * kept, (SWOR,) * kept)

    return Method(draft, judge_of(RULES["chain"], target, drafter))


def test_b9_prime_is_biased_with_the_published_score_and_exact_with_the_shifted_one() -> None:
    assert distortion(shared(G1_TARGET, G1_DRAFT, 1, 1, shifted=False), G1_TARGET, 1) == pytest.approx(0.0461, abs=5e-5)
    assert distortion(shared(G1_TARGET, G1_DRAFT, 1, 1, shifted=True), G1_TARGET, 1) < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_two_levels_are_exact_jointly(seed: int) -> None:
    target, drafter = dirichlet(3, seed), dirichlet(3, 30 + seed)
    assert distortion(shared(target, drafter, 2, 2, shifted=True), target, 3) < 1e-12
    assert distortion(shared(target, drafter, 2, 2, shifted=False), target, 3) > 1e-4


# --- trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_trees_are_cut_alike_by_heap_and_tensor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [[int(rng.integers(-1, i)) for i in range(int(rng.integers(0, 7)))] for _ in range(3)]
    values = [[float(v) for v in rng.choice([0.9, 0.6, 0.5, 0.1], len(p))] for p in parents]
    tokens = [list(range(len(p))) for p in parents]
    drafts = trees(list(zip(tokens, parents, strict=True)), value=values)
    for capacity in (0, 1, 4, 7, 99):
        mask = best_nodes(drafts, capacity)
        found = [torch.nonzero(row)[:, 0].tolist() for row in mask]
        falling = [[torch.tensor(v, dtype=torch.float32).item() for v in row] for row in values]
        assert found == best_nodes_by_heap(list(zip(parents, falling, strict=True)), capacity)
        left = keep_best(drafts, capacity)
        left.check()
        assert left.kind == Kind.CHOSEN
        assert [left.tree(b).token for b in range(3)] == found  # tokens are node numbers here


def test_a_tree_cut_by_value_is_exact_as_chosen() -> None:
    """Sampled siblings, the more likely one kept: the residual rule sees CHOSEN drafts and stays exact."""
    target, drafter = dirichlet(3, 5), dirichlet(3, 6)
    q = drafter.next_distribution()

    def draft(rng: Rng) -> Draft:
        drawn: list[int] = []
        left = q.copy()
        for turn in range(2):
            row = DenseDistribution(torch.from_numpy(left / left.sum())[None])
            drawn.append(int(rng.draw(row, Purpose.DRAFT, torch.tensor([turn]))[0]))
            left[drawn[-1]] = 0.0
        block = trees([(drawn, [-1, -1])], SWOR, value=[[float(q[v]) for v in drawn]])
        best = keep_best(block, 1).tree(0)
        return Draft(tuple(best.token), tuple(best.parent), (1,), tuple(best.kind))

    assert distortion(Method(draft, judge_of(RULES["residual"], target, drafter)), target, 2) < 1e-12
    kinds = {draft.kind for draft in distribution_of_outcomes(draft)}  # type: ignore[attr-defined]
    assert kinds == {(Kind.CHOSEN,)}
