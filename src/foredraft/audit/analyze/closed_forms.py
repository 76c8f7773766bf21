"""Acceptance of the known rules at one node, averaged over their candidates: closed forms, at any vocabulary size.

Where candidates are drawn without replacement the average over the first ones is sampled; every test is still summed
over all tokens, so that rare candidates which a target likes are not missed. `acceptance` runs the rules themselves
and is what these formulas are tested against.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.verify.exact.bounds import alpha_star, alpha_top_then_sampled
from ...core.verify.exact.canonical import select
from ...core.verify.exact.kseq import best_rho, overlap
from ...core.verify.exact.rejection import residual
from ...types import Kind
from ..enumerate.table_model import Array

Form = Callable[[Array, Array, int, np.random.Generator], float]


def independent_rejection(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    """RRS: what is left of p after a rejection does not depend on the candidate."""
    rejected, r = 1.0, p
    for _ in range(count):
        rejected *= 1.0 - float(np.minimum(r, q).sum())
        r = residual(r, q)
    return 1.0 - rejected


def rejection_in_turn(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    """RRSw along one drawn series of rejected candidates."""
    rejected, r, s = 1.0, p, q
    for _ in range(count):
        rejected *= 1.0 - float(np.minimum(r, s).sum())
        over = np.clip(s - r, 0.0, None)
        if over.sum() <= 0:
            return 1.0
        r, s = residual(r, s), without(s, drawn(over, rng))
        if s.sum() <= 0:
            break
    return 1.0 - rejected


def k_seq(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    """k-SEQ at rho*, where what is left over never hits a candidate."""
    return float(1.0 - (1.0 - overlap(p, q, best_rho(p, q, count))) ** count)


def canonical(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    """The single-draft test of the draw that was kept; corrections that hit another draw are not counted."""
    distribution = q
    for _ in range(count - 1):
        distribution = select(p, distribution, q).distribution
    return float(np.minimum(p, distribution).sum())


def match_drawn(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    """Target mass on candidates drawn without replacement, along one drawn series."""
    mass, s = 0.0, q
    left = p.copy()
    for _ in range(count):
        mass += float((left * s).sum())
        token = drawn(s, rng)
        left[token] = 0.0
        s = without(s, token)
        if s.sum() <= 0:
            break
    return mass


def match_chosen(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    """Target mass on the top candidates."""
    return float(p[np.argsort(-q, kind="stable")[:count]].sum())


def top_then_sampled(p: Array, q: Array, count: int, rng: np.random.Generator) -> float:
    return alpha_top_then_sampled(p, q, count)


def drawn(weights: Array, rng: np.random.Generator) -> int:
    cdf = np.cumsum(weights)
    return min(int(np.searchsorted(cdf, rng.random() * cdf[-1], side="right")), weights.size - 1)


def without(distribution: Array, token: int) -> Array:
    """The distribution of the next draw without replacement; zero where nothing is left."""
    left = distribution.copy()
    left[token] = 0.0
    return left / max(float(left.sum()), 1e-300)


FORMS: dict[tuple[str, Kind], Form] = {
    ("residual-iid", Kind.SAMPLED_IID): independent_rejection,
    ("k-seq", Kind.SAMPLED_IID): k_seq,
    ("canonical", Kind.SAMPLED_IID): canonical,
    ("residual", Kind.SAMPLED_WITHOUT_REPLACEMENT): rejection_in_turn,
    ("sample-and-match", Kind.SAMPLED_WITHOUT_REPLACEMENT): match_drawn,
    ("top-then-sampled", Kind.TOP_THEN_SAMPLED): top_then_sampled,
    ("sample-and-match", Kind.CHOSEN): match_chosen,
}


def acceptance(rule: str, kind: Kind, p: Array, q: Array, count: int, draws: int, seed: int) -> tuple[float, float]:
    """(mean, variance of the mean) over `draws` series, one where nothing has to be drawn."""
    draws = draws if kind is Kind.SAMPLED_WITHOUT_REPLACEMENT and count > 1 else 1
    rng = np.random.default_rng(seed)
    seen = [FORMS[rule, kind](p, q, count, rng) for _ in range(draws)]
    return float(np.mean(seen)), float(np.var(seen, ddof=1)) / draws if draws > 1 else 0.0


def optimum(p: Array, q: Array, kind: Kind, count: int) -> float:
    """The best that any exact rule can do with such candidates."""
    if kind is Kind.TOP_THEN_SAMPLED:
        return alpha_top_then_sampled(p, q, count)
    if kind is Kind.CHOSEN:
        return float(p[np.argsort(-q, kind="stable")[:count]].sum())
    return alpha_star(p, q, count, replacement=kind is Kind.SAMPLED_IID)
