"""How likely a drafted token is accepted, given the probability that its drafter gave it: learnt from verified rounds.

A greedy target takes the top token more often than a head's probability says. In log-odds,

    P(accepted) = given + shift(given) + own

where the shift is measured on all sequences at a few knots, separately for the top token after a node and for the
others, and `own` is how far this sequence departs from them. Only tokens after accepted ones are counted, so that the
product along a path is the probability of the path. What a round drafts is decided by rounds before it (invariant 5).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.trees.host_builder import Pieces
from ..types import DraftBatch
from .constants import CALIBRATION_FADE, CALIBRATION_WEIGHTS, FADE_ALL

Numbers = NDArray[Any]


def log_odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


KNOTS = tuple(log_odds(q) for q in (0.03, 0.1, 0.25, 0.5, 0.75, 0.95))
POINTS = (0.003, 0.03, 0.1, 0.17, 0.25, 0.37, 0.5, 0.62, 0.75, 0.86, 0.95, 0.995)  # of the curve that a round uses
LOG_POINTS = tuple(map(math.log, POINTS))
POINT_ARRAY = np.array(LOG_POINTS, dtype=np.float32)
MIDDLES = tuple((a + b) / 2 for a, b in pairwise(KNOTS))  # a probability belongs to the nearest knot
ALL_WEIGHT, OWN_WEIGHT = CALIBRATION_WEIGHTS
SUREST = 1 - 1e-6  # keeps log-odds finite


@dataclass(slots=True)
class PendingDrafts:
    """What was drafted for a sequence, until its text shows the outcome. Parents come before their children."""

    token: list[int]
    parent: list[int]  # -1 = root
    given: list[float]  # log-probability of each token after its parent, as the drafter gave it
    top: list[int]  # whether it was the top token after its parent

    def tested(self, wrote: Seq[int]) -> Iterator[tuple[int, bool]]:
        """Nodes that the text reached, and whether it took them."""
        at = -1
        for token in wrote:
            reached = [node for node, parent in enumerate(self.parent) if parent == at]
            yield from ((node, self.token[node] == token) for node in reached)
            at = next((node for node in reached if self.token[node] == token), -2)


@dataclass(slots=True)
class Knot:
    """Drafts whose given probability is near one knot."""

    hits: float = 0.0
    count: float = 0.0
    given: float = 0.0  # sum of probabilities

    @property
    def shift(self) -> float:
        """From the given to the observed probability, in log-odds; 0 before anything was observed."""
        if not self.count:
            return 0.0
        given = min(self.given / self.count, SUREST)
        found = (self.hits + ALL_WEIGHT * given) / (self.count + ALL_WEIGHT)
        return log_odds(min(max(found, 1 - SUREST), SUREST)) - log_odds(given)

    def fade(self) -> None:
        self.hits, self.count, self.given = (FADE_ALL * x for x in (self.hits, self.count, self.given))


@dataclass(slots=True)
class Own:
    """How far a sequence departs from all others: the first step of Newton's method from 0."""

    surplus: float = 0.0  # hits minus expected hits
    spread: float = 0.0  # their variance under the calibration of all

    @property
    def shift(self) -> float:
        return self.surplus / (self.spread + OWN_WEIGHT)


@dataclass(frozen=True, slots=True)
class Curve:
    """Log-probabilities of acceptance in one round, piecewise linear in the log-probabilities that a drafter gives."""

    first: Numbers  # [B, 1, k] first piece of a sequence, for the top token after a node and for others
    slope: Numbers  # [B * 2 * (P + 1)] of all pieces
    offset: Numbers

    def __call__(self, given: Tensor) -> Tensor:
        """[B, w, k] calibrated log-probabilities of the top k tokens after w nodes; given ones fall along k."""
        return torch.from_numpy(self.on_host(given.cpu().numpy())).to(given.device)

    def on_host(self, given: Numbers) -> Numbers:
        """The same in numpy."""
        piece = POINT_ARRAY.searchsorted(given) + self.first[:, :, : given.shape[2]]
        found: Numbers = self.slope[piece] * given + self.offset[piece]
        return found

    def pieces(self) -> Pieces:
        """Those of a round's only sequence."""
        return Pieces(POINT_ARRAY, self.slope, self.offset)


@dataclass(slots=True)
class Calibration:
    """What a drafter's probabilities are worth."""

    everyone: tuple[list[Knot], list[Knot]] = field(  # of top tokens after their nodes, of all others
        default_factory=lambda: ([Knot() for _ in KNOTS], [Knot() for _ in KNOTS])
    )
    own: dict[int, Own] = field(default_factory=dict)
    pending: dict[int, PendingDrafts] = field(default_factory=dict)  # sequence -> its round under way

    def curve(self, ids: Seq[int], width: int) -> Curve:
        """For sequences `ids`, and at most `width` tokens after a node."""
        heights = np.array([_heights(knots) for knots in self.everyone]) @ _SHARES + _BEYOND
        own = np.array([self.own[each].shift if each in self.own else 0.0 for each in ids])
        slope, offset = _pieces(heights + own[:, None, None])
        first = [[[(len(POINTS) + 1) * (2 * b + (k > 0)) for k in range(width)]] for b in range(len(ids))]
        return Curve(np.array(first), slope, offset)

    def expect(self, ids: Seq[int], drafts: DraftBatch, given: Tensor, top: Tensor) -> None:
        """These drafts go to the verifier, with these log-probabilities of the drafter; `top` marks those that were the
        top token after their parents; both [B, N]."""
        columns = torch.stack((drafts.token, drafts.parent, top)).tolist()
        for b, (each, n, logs) in enumerate(zip(ids, drafts.lengths(), given.tolist(), strict=True)):
            token, parent, first = (column[b][:n] for column in columns)
            self.pending[each] = PendingDrafts(token, parent, logs[:n], first)

    def observe(self, sequence: int, wrote: Seq[int]) -> None:
        """What the target wrote in the round of `expect`; without one there is nothing to learn."""
        pending = self.pending.pop(sequence, None)
        if pending is None or not pending.token:
            return
        heights = [_heights(knots) for knots in self.everyone]
        own = self.own.setdefault(sequence, Own())
        own.surplus, own.spread = CALIBRATION_FADE * own.surplus, CALIBRATION_FADE * own.spread
        for knot in (*self.everyone[0], *self.everyone[1]):
            knot.fade()
        for node, hit in pending.tested(wrote):
            given, other = min(max(math.exp(pending.given[node]), 1 - SUREST), SUREST), not pending.top[node]
            odds = log_odds(given)
            expected = _sigmoid(_at(heights[other], odds))
            own.surplus += hit - expected
            own.spread += expected * (1 - expected)
            near = self.everyone[other][bisect_right(MIDDLES, odds)]
            near.hits, near.count, near.given = near.hits + hit, near.count + 1, near.given + given

    def end(self, sequence: int) -> None:
        self.own.pop(sequence, None)
        self.pending.pop(sequence, None)


def _heights(knots: Seq[Knot]) -> list[float]:
    """Calibrated log-odds at every knot, monotone by pooling adjacent violators, weighted by their counts."""
    pools: list[tuple[float, float, int]] = []  # height, weight, knots
    for knot, each in zip(KNOTS, knots, strict=True):
        height, weight, size = knot + each.shift, each.count + 1.0, 1
        while pools and pools[-1][0] > height:
            other, heavy, more = pools.pop()
            height, weight = (height * weight + other * heavy) / (weight + heavy), weight + heavy
            size += more
        pools.append((height, weight, size))
    return [height for height, _, size in pools for _ in range(size)]


def _at(heights: Seq[float], odds: float) -> float:
    """Calibrated log-odds anywhere: linear between knots, and beyond them with the shift of the last one."""
    right = bisect_right(KNOTS, odds)
    if right in (0, len(KNOTS)):
        end = min(right, len(KNOTS) - 1)
        return odds + heights[end] - KNOTS[end]
    (x, next_x), (y, next_y) = KNOTS[right - 1 : right + 1], heights[right - 1 : right + 1]
    return y + (next_y - y) * (odds - x) / (next_x - x)


# Between knots and beyond them `_at` is linear in their heights: its values at POINTS are heights @ _SHARES + _BEYOND.
_BEYOND = np.array([_at([0.0] * len(KNOTS), log_odds(q)) for q in POINTS])
_SHARES = np.array([[_at(unit, log_odds(q)) for q in POINTS] for unit in np.eye(len(KNOTS)).tolist()]) - _BEYOND


def _pieces(heights: Numbers) -> tuple[Numbers, Numbers]:
    """Slopes and offsets of calibrated over given log-probability, of curves [.., P] one after another: left of the
    first point, between points, right of the last. Slope 1 on the left end, constant on the right end."""
    logs, ends = -np.log1p(np.exp(-np.maximum(heights, -60.0))), np.ones((*heights.shape[:-1], 1))
    slope = np.concatenate((ends, np.diff(logs) / np.diff(LOG_POINTS), 0.0 * ends), axis=-1)
    at = np.concatenate((logs, logs[..., -1:]), axis=-1)  # a point of each piece
    offset = at - slope * np.array((*LOG_POINTS, LOG_POINTS[-1]))
    return slope.astype(np.float32).ravel(), offset.astype(np.float32).ravel()


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, x))))
