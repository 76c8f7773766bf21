"""Shared verification: drafts cut to the best of a batch, and depths that make a batch fastest."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from foredraft.control.cost import DraftTiming
from foredraft.control.depth_allocation import Candidate, best_depths
from foredraft.core.rng.enumerating import distribution_of_outcomes
from foredraft.core.trees.layout import trees
from foredraft.core.trees.select import best_lengths_by_heap
from foredraft.core.trees.tetris import Score, can_cut, cut_to, distribution_scores
from foredraft.core.verify import RULES
from foredraft.types import DraftBatch, Kind
from foredraft.types.drafts import chains
from tests.kit.drafting import Draft, batch_case_of, draft_tree
from tests.kit.tables import dirichlet

DRAWN = Kind.SAMPLED_WITHOUT_REPLACEMENT
MODEL = dirichlet(3, 7)


def drawn_chains(length: int = 3, count: int = 3) -> tuple[list[Draft], DraftBatch]:
    """Different chains of one draft model, as a batch with its distributions."""
    every = sorted(distribution_of_outcomes(lambda rng: draft_tree(MODEL, (1,) * length, DRAWN, rng)), key=str)
    some = [every[i * len(every) // count] for i in range(count)]
    return some, batch_case_of(some, MODEL, MODEL)(None).drafts  # type: ignore[arg-type]


def test_scores_are_those_of_the_papers() -> None:
    some, drafts = drawn_chains()
    shifted, published = distribution_scores(drafts).exp(), distribution_scores(drafts, Score.PUBLISHED).exp()
    for b, draft in enumerate(some):
        path = 1.0
        for j, token in enumerate(draft.token):
            distribution = MODEL.next_distribution(draft.token[:j])
            assert float(shifted[b, j]) == pytest.approx(path * distribution.max())
            path *= distribution[token]
            assert float(published[b, j]) == pytest.approx(path)


@pytest.mark.parametrize("capacity", range(10))
@pytest.mark.parametrize("score", Score)
def test_chains_are_cut_to_their_best_prefixes_and_stay_drawn(score: Score, capacity: int) -> None:
    some, drafts = drawn_chains()
    left = cut_to(drafts, capacity, score)
    assert list(left.lengths()) == best_lengths_by_heap(distribution_scores(drafts, score).tolist(), capacity)
    assert left.kind is DRAWN and left.distributions is drafts.distributions
    for b, draft in enumerate(some):
        assert left.tree(b).token == list(draft.token[: left.lengths()[b]])


def test_a_shifted_score_is_blind_to_the_token_itself() -> None:
    """Chains that differ in their last token only have equal scores there; the published ones differ."""
    tokens = [(0, 1, last) for last in range(3)]
    some = [Draft(t, (-1, 0, 1), (1, 1, 1), (DRAWN,) * 3) for t in tokens]
    drafts = batch_case_of(some, MODEL, MODEL)(None).drafts  # type: ignore[arg-type]
    assert len({round(v, 12) for v in distribution_scores(drafts)[:, 2].tolist()}) == 1
    assert len({round(v, 12) for v in distribution_scores(drafts, Score.PUBLISHED)[:, 2].tolist()}) == 3


def test_chosen_drafts_are_cut_by_value() -> None:
    drafts = chains([[5, 6, 7], [8, 9], []], values=[[0.9, 0.4, 0.1], [0.5, 0.3], []])
    left = cut_to(drafts, 3)
    assert left.lengths() == (2, 1, 0)
    assert [left.tree(b).token for b in range(3)] == [[5, 6], [8], []]
    assert cut_to(drafts, 5) is drafts


def test_what_cannot_be_cut_is_left_alone() -> None:
    match, residual, chain = (RULES[name] for name in ("sample-and-match", "residual", "chain"))
    _, drawn = drawn_chains()
    assert can_cut(drawn, chain) and can_cut(drawn, match)
    assert not can_cut(chains([[1, 2]]), match)  # it says nothing of itself
    assert can_cut(chains([[1, 2]], values=[[0.5, 0.2]]), match)
    chosen = trees([([1, 2], [-1, -1])], Kind.CHOSEN, value=[[0.5, 0.2]])
    assert can_cut(chosen, residual) and can_cut(chosen, match)
    tree = trees([([1, 2], [-1, -1])], DRAWN, value=[[0.5, 0.2]])
    assert can_cut(tree, match) and not can_cut(tree, residual)
    assert cut_to(tree, 1).kind is Kind.CHOSEN


# --- depths ---------------------------------------------------------------------------------------------------------


def timed(levels: dict[str, float]) -> dict[str, DraftTiming]:
    return {name: DraftTiming(seconds) for name, seconds in levels.items()}


def rate(
    wishes: list[Candidate], depths: tuple[int, ...], writers: int, each: float, levels: dict[str, float]
) -> float:
    tokens = writers + sum(sum(w.gains[:d]) for w, d in zip(wishes, depths, strict=True))
    rows = sum(w.rows * d for w, d in zip(wishes, depths, strict=True))
    deepest = {
        name: max((d for w, d in zip(wishes, depths, strict=True) if w.drafter == name), default=0) for name in levels
    }
    return tokens / (10 + each * (writers + rows) + sum(levels[name] * deepest[name] for name in levels))


@pytest.mark.parametrize("seed", range(20))
def test_depths_are_the_best_there_are(seed: int) -> None:
    """Against all choices, for drafters that take no time."""
    rng = np.random.default_rng(seed)
    gains = [np.cumprod(rng.uniform(0.2, 1.0, 3)).tolist() for _ in range(3)]
    wishes = [Candidate(g, "ab"[i % 2]) for i, g in enumerate(gains)]
    each, writers = float(rng.choice([0.2, 2.0, 10.0])), 4
    found = best_depths(wishes, writers, lambda rows: 10 + each * (writers + rows), {})
    best = max(rate(wishes, depths, writers, each, {}) for depths in product(range(4), repeat=3))
    assert found.rate == pytest.approx(best)
    assert rate(wishes, found.depths, writers, each, {}) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
def test_slow_drafters_are_left_out(seed: int) -> None:
    """Never worse than any choice that uses a drafter to the full or not at all."""
    rng = np.random.default_rng(seed)
    wishes = [Candidate(np.cumprod(rng.uniform(0.5, 1.0, 2)).tolist(), name) for name in ("slow", "quick", "slow")]
    levels = {"slow": float(rng.uniform(0, 8)), "quick": 0.1}
    found = best_depths(wishes, 3, lambda rows: 10 + 0.5 * (3 + rows), timed(levels))
    assert found.rate == pytest.approx(rate(wishes, found.depths, 3, 0.5, levels))
    for slow, quick in product((0, 2), repeat=2):
        assert found.rate >= rate(wishes, (slow, quick, slow), 3, 0.5, levels) - 1e-12


def test_a_drafter_that_is_too_slow_leaves_room_for_the_other() -> None:
    wishes = [Candidate([0.9, 0.8], "slow"), Candidate([0.7, 0.6], "quick")]
    found = best_depths(wishes, 2, lambda rows: 10 + rows, timed({"slow": 100.0, "quick": 0.01}))
    assert found.depths == (0, 2)


def test_where_rows_are_even_nobody_drafts_alone() -> None:
    """A good and a poor request: by itself the good one would draft two levels, but both pay for each."""
    wishes = [Candidate([0.9, 0.81], "one"), Candidate([0.1, 0.01], "one")]

    def depths(each: float, even: bool) -> tuple[int, ...]:
        return best_depths(wishes, 2, lambda rows: 10 + each * rows, {}, even).depths

    assert depths(3.0, even=False) == (2, 0)
    assert depths(3.0, even=True) == (0, 0)
    assert depths(1.0, even=True) == (2, 2)  # what is paid for is used


def test_depths_fall_with_the_batch() -> None:
    def total(batch: int) -> int:
        wishes = [Candidate([0.8, 0.64, 0.5, 0.4], "d")] * batch
        return sum(best_depths(wishes, batch, lambda rows: 20 + batch + rows, timed({"d": 0.5})).depths)

    means = [total(batch) / batch for batch in (1, 4, 16, 64, 256)]
    assert means == sorted(means, reverse=True)
    assert means[0] == 4 and means[-1] == 0


def test_trees_pay_for_all_their_rows() -> None:
    chain, tree = (
        best_depths([Candidate([0.8, 0.6], "d", rows)], 2, lambda r: 5 + r, {}).depths for rows in (1.0, 8.0)
    )
    assert (chain, tree) == ((2,), (0,))


def test_nobody_wishes_anything() -> None:
    assert best_depths([], 3, lambda rows: 2.0, {}).depths == ()
    assert torch.equal(cut_to(chains([[]]), 0).length, torch.tensor([0]))
