"""The distribution of a next token as an auditor sees it: the most likely tokens one by one, all others as one cell.

A black box reveals no more than that, and a test on cells stays valid whatever happens inside the last one. Tokens are
ids, or strings where an endpoint gives no ids; nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from ..enumerate.table_model import Array

Token = int | str
Text = tuple[Token, ...]

FLOOR = 1e-12  # a cell that should be empty keeps this much: one stray token is no proof, a second one is


@dataclass(frozen=True, slots=True)
class CellDistribution:
    """Probabilities of m tokens and of everything else."""

    tokens: tuple[Token, ...]  # most likely first
    mass: Array  # [m + 1], the last cell is the rest
    place: dict[Token, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", {token: i for i, token in enumerate(self.tokens)})

    def cell(self, token: Token) -> int:
        return self.place.get(token, len(self.tokens))


def cells_of(probs: Mapping[Token, float]) -> CellDistribution:
    """From the probabilities of some tokens; the rest of the mass is the rest."""
    ranked = sorted(probs.items(), key=lambda item: -item[1])
    return _distribution(tuple(token for token, _ in ranked), [p for _, p in ranked], 1.0 - sum(probs.values()))


def cells_of_dense(probs: ArrayLike, top: int) -> CellDistribution:
    """From a whole distribution, of which the `top` most likely tokens keep their own cells."""
    distribution = np.asarray(probs, np.float64)
    top = min(top, distribution.size)
    order = np.argpartition(-distribution, top - 1)[:top] if top < distribution.size else np.arange(distribution.size)
    order = order[np.argsort(-distribution[order], kind="stable")]
    kept = distribution[order]
    return _distribution(
        tuple(order.tolist()), kept, float(distribution.sum() - kept.sum()) if top < distribution.size else 0.0
    )


def _distribution(tokens: tuple[Token, ...], probs: Sequence[float] | Array, rest: float) -> CellDistribution:
    mass = np.maximum(np.append(np.asarray(probs, np.float64), rest), FLOOR)
    return CellDistribution(tokens, mass / mass.sum())
