"""alpha* and optimal transport: flow, linear program and dual agree, and the dual works at real vocabularies."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from foredraft.core.verify.exact import bounds
from foredraft.core.verify.exact.bounds import acceptance_can_be_one, alpha_star, alpha_top_then_sampled
from foredraft.core.verify.exact.transport import Plan, SetDistribution, set_distribution, transport, transport_lp
from foredraft.types import Kind

SWOR, IID, TOP = Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.SAMPLED_IID, Kind.TOP_THEN_SAMPLED
P, Q = np.array([0.40, 0.30, 0.15, 0.10, 0.05]), np.array([0.10, 0.25, 0.35, 0.05, 0.25])


def random_pair(seed: int, vocab: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(vocab, (0.3, 1.0, 3.0)[seed % 3])) for _ in range(2))
    if seed % 4 == 0:
        q[0] = 0.0
        q /= q.sum()
    return p, q


def test_g1() -> None:
    assert [alpha_star(P, Q, k) for k in (1, 2, 3)] == pytest.approx([0.6, 0.7775, 0.871], abs=1e-12)
    assert [alpha_star(P, Q, k, False) for k in (1, 2, 3)] == pytest.approx([0.6, 0.825775978, 1.0], abs=1e-9)
    assert [alpha_top_then_sampled(P, Q, k) for k in (2, 3)] == pytest.approx([0.730769231, 0.85], abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", [SWOR, IID, TOP], ids=lambda kind: kind.name)
def test_flow_program_and_dual_agree(kind: Kind, seed: int) -> None:
    p, q = random_pair(seed)
    for count in (1, 2, 3):
        seen = np.argsort(-q, kind="stable")[: min(count, int((q > 0).sum()))].tolist()
        distribution = set_distribution(q, kind, seen, count)
        plan = transport(p, distribution)
        dual = alpha_top_then_sampled(p, q, count) if kind == TOP else alpha_star(p, q, count, kind == IID)
        assert sum(distribution.values()) == pytest.approx(1)
        assert plan.value == pytest.approx(transport_lp(p, distribution), abs=1e-9)
        assert plan.value == pytest.approx(dual, abs=1e-9)
        _check_plan(p, distribution, plan)


def _check_plan(p: np.ndarray, distribution: SetDistribution, plan: Plan) -> None:
    """What a set gives is at most its mass, what a token gets is at most p."""
    got = np.zeros_like(p)
    for x, flow in plan.flow.items():
        assert flow.min() >= 0 and flow.sum() <= distribution[x] + 1e-15
        got[list(x)] += flow
    assert np.abs(got + plan.spare - p).max() < 1e-15 and plan.spare.min() >= 0


@pytest.mark.parametrize("seed", range(12))
def test_prefixes_suffice(seed: int) -> None:
    """The dual over all subsets is reached by a prefix of the tokens sorted by p / q."""
    p, q = random_pair(seed)
    tokens = range(5)
    subsets = chain.from_iterable(combinations(tokens, n) for n in range(6))
    distribution = {
        count: set_distribution(q, SWOR, list(tokens)[:count], count) for count in (2, 3) if count <= (q > 0).sum()
    }
    every = [set(subset) for subset in subsets]
    for count, sets in distribution.items():
        whole = 1 + min(p[list(h)].sum() - _caught(sets, h) for h in every)
        assert alpha_star(p, q, count, False) == pytest.approx(whole, abs=1e-9)
    iid = 1 + min(p[list(h)].sum() - q[list(h)].sum() ** 2 for h in every)
    assert alpha_star(p, q, 2) == pytest.approx(iid, abs=1e-12)
    assert acceptance_can_be_one(p, q) == all(p[list(h)].sum() >= q[list(h)].sum() ** 2 - 1e-12 for h in every)


def _caught(distribution: SetDistribution, inside: set[int]) -> float:
    return sum(mass for x, mass in distribution.items() if set(x) <= inside)


def test_acceptance_can_be_one() -> None:
    assert acceptance_can_be_one([0.5, 0.5], [0.5, 0.5])
    assert acceptance_can_be_one([0.5, 0.5], [0.7, 0.3])  # .5 >= .49 and .5 >= .09
    assert not acceptance_can_be_one([0.5, 0.5], [0.72, 0.28])
    assert acceptance_can_be_one([0.5, 0.5], [0.72, 0.28], count=3)


def test_tokens_that_are_hardly_ever_drawn_take_long_to_arrive() -> None:
    """A time grid that ends at 1e7 misses them: the rest of q beyond H is 1e-8 here."""
    p, q = np.array([0.78, 0.2, 0.0, 0.01, 0.01]), np.array([1.8e-7, 0.0075, 0.8336, 0.0037, 0.1552])
    q = q / q.sum()
    flow = transport(p, set_distribution(q, SWOR, [0, 1, 2], 3)).value
    assert alpha_star(p, q, 3, False) == pytest.approx(flow, abs=1e-9)


def language_like(seed: int, vocab: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    decay = -1.3 * np.log(np.arange(1, vocab + 1))[rng.permutation(vocab)]
    rows = [np.exp(decay + noise * rng.normal(size=vocab)) for _ in range(2)]
    return rows[0] / rows[0].sum(), rows[1] / rows[1].sum()


def test_shared_steps_hardly_move_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = language_like(1, 3000)
    for count in (3, 5):
        fast = alpha_star(p, q, count, False)
        with monkeypatch.context() as patch:
            patch.setattr(bounds, "_SINGLE", 10_000)
            assert fast == pytest.approx(alpha_star(p, q, count, False), abs=2e-6)


def test_bounds_at_a_real_vocabulary_are_ordered() -> None:
    p, q = language_like(2, 49_152)
    single = float(np.minimum(p, q).sum())
    assert alpha_star(p, q, 1) == pytest.approx(single, abs=1e-9)
    for count in (2, 3, 4):
        with_it, without = alpha_star(p, q, count), alpha_star(p, q, count, False)
        assert single < with_it <= without + 1e-6 <= 1 + 1e-6
        single = with_it
