"""LANTERN and LANTERN++ on toy codebooks: exact when off, budgeted when on, the same in both forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.core.verify import Rule, lantern, lantern_pp
from foredraft.core.verify.lossy.lantern import Pooling, nearest_codes
from foredraft.errors import UsageError
from foredraft.types import Kind, Reason
from tests.kit.drafting import Draft, tree_case_of
from tests.kit.exactness import accepted_tokens, distortion, method_of
from tests.kit.ledger import Ledger
from tests.kit.tables import at_temperature_zero, fixed

from .codebooks import grid, image_model, ring

SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT
RING, GRID = nearest_codes(ring(8), 7), nearest_codes(grid(3), 8)
TARGET, DRAFTER = image_model(ring(8), 2.0, 0.1, 1), image_model(ring(8), 1.0, 0.4, 2)
FLAT, GUESS = image_model(grid(3), 3.0, 0.2, 3), image_model(grid(3), 1.5, 0.5, 4)


def test_nearest_codes_leave_the_code_itself_out() -> None:
    assert RING[0, :2].tolist() in ([1, 7], [7, 1])
    assert all(i not in row for i, row in enumerate(RING.tolist()))
    assert set(GRID[4, :4].tolist()) == {1, 3, 5, 7}  # the middle of the grid


def measure(rule: Rule, count: int = 1, kind: Kind = SWOR) -> tuple[float, float]:
    """(acceptance, distortion) of one level on the ring."""
    method = method_of(rule, TARGET, DRAFTER, (count,), kind)
    return accepted_tokens(method), distortion(method, TARGET, 1)


@pytest.mark.parametrize("rule", [lantern(RING, 4, 0.0), lantern_pp(RING, 4, 1.0)], ids=["delta 0", "lam 1"])
@pytest.mark.parametrize("kind", [SWOR, Kind.CHOSEN], ids=lambda kind: kind.name)
@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
def test_without_a_budget_it_is_exact(rule: Rule, kind: Kind, batched: bool) -> None:
    for shape in ((1,), (2,)):
        assert distortion(method_of(rule, TARGET, DRAFTER, shape, kind, batched=batched), TARGET, 1) < 1e-12


def test_a_larger_budget_accepts_more_and_bends_more() -> None:
    overlap = float(np.minimum(TARGET.next_distribution(), DRAFTER.next_distribution()).sum())
    accepted, off = zip(*(measure(lantern(RING, 4, delta)) for delta in (0.0, 0.05, 0.1, 0.2, 0.4)), strict=True)
    assert accepted[0] == pytest.approx(overlap) and accepted[-1] > overlap + 0.05
    assert list(accepted) == sorted(accepted) and off[0] < 1e-12 < off[-1]
    for got, bent in zip(accepted, off, strict=True):
        assert got <= overlap + bent + 1e-12  # T6


@pytest.mark.parametrize("lam", [2.0, 5.0])
def test_the_multiplicative_budget_caps_the_pooled_mass(lam: float) -> None:
    pool, r = Pooling(RING, 7, times=lam - 1), TARGET.next_distribution()
    for token in range(8):
        assert 0 <= pool.mass(r, token) <= (lam - 1) * r[token]
        row = torch.from_numpy(r)[None]
        assert float(pool.mass_batch(row, torch.tensor([token]))) == pytest.approx(pool.mass(r, token))
    accepted, off = measure(lantern_pp(RING, 7, lam))
    assert off > 1e-6 and accepted <= float(np.minimum(r, DRAFTER.next_distribution()).sum()) + off + 1e-12


def test_pooling_stops_at_the_first_neighbour_that_does_not_fit() -> None:
    near = torch.tensor([[1, 2], [0, 2], [0, 1]])
    r = np.array([0.2, 0.1, 0.7])
    assert Pooling(near, 2, add=0.1).mass(r, 0) == pytest.approx(0.1)
    assert Pooling(near, 2, add=0.05).mass(r, 0) == 0.0
    assert Pooling(near, 1, add=0.9).mass(r, 0) == pytest.approx(0.1)  # k neighbours at most


def test_neighbours_of_a_pooled_candidate_keep_their_mass() -> None:
    """After a rejection [R - S]+ spares the k + 1 nearest codes; the candidate itself pays."""
    near = torch.tensor([[1, 2, 3], [0, 2, 3], [1, 3, 0], [2, 1, 0]])
    target, drafter = fixed((0.1, 0.2, 0.3, 0.4)), fixed((0.4, 0.3, 0.2, 0.1))
    ledger = Ledger()
    rule = lantern(near, k=1, delta=0.25)
    rule.verify(tree_case_of(Draft((0,), (-1,), (1,), (SWOR,)), target, drafter)(ledger))
    assert ledger.tests == pytest.approx([0.25, (0.75 - 0.25) / 0.75])  # p/q, then the pooled rest of it
    assert ledger.drawn[0] == pytest.approx(np.array([0, 0.2, 0.3, 0.3]) / 0.8)  # codes 1 and 2 are spared


def test_the_grid_codebook_works_the_same_way() -> None:
    method = method_of(lantern(GRID, 4, 0.3), FLAT, GUESS, (2,), SWOR)
    plain = method_of(lantern(GRID, 4, 0.0), FLAT, GUESS, (2,), SWOR)
    assert accepted_tokens(method) > accepted_tokens(plain) + 0.02
    assert distortion(plain, FLAT, 1) < 1e-12 < distortion(method, FLAT, 1)


def test_greedy_mode_takes_a_pooled_argmax() -> None:
    """At temperature 0 a neighbour of the argmax passes if its pooled probability is the largest of the row."""
    near, p = torch.tensor([[1, 2], [0, 2], [1, 0]]), np.array([0.45, 0.35, 0.2])
    target, drafter = fixed(p), fixed((0.1, 0.8, 0.1))
    draft = Draft((1,), (-1,), (1,), (Kind.CHOSEN,))
    for delta, accepted in ((0.5, True), (0.3, False)):
        rule = lantern(near, k=1, delta=delta, greedy=True)
        case = tree_case_of(draft, at_temperature_zero(target), drafter)(Ledger())
        view = type(case)(case.tree, case.target, case.draft, case.rng, None, lambda row: p)
        verdict = rule.verify(view)
        assert (verdict.path == [0]) == accepted
        assert not accepted or verdict.reasons[0] == Reason.RELAXED


def test_bad_tables_are_refused() -> None:
    with pytest.raises(UsageError, match="neighbour table"):
        lantern(RING[0], 4, 0.1)
    with pytest.raises(UsageError, match="lam is at least 1"):
        lantern_pp(RING, 4, 0.5)
