"""How likely a drafted token really is, given what its drafter says of it: learnt from verified rounds.

A head that gives a token the probability q is not right in the share q of cases: greedy targets take the likeliest
token more often than its probability says. In log-odds, chance(q) = q + shift(q) + own, where the shift is measured on
all sequences at a few knots, for the likeliest token behind a node and for the others apart, and `own` is how far this
sequence departs from them. Only tokens behind accepted ones are counted, so that the product of chances along a path
is the chance of the path. What a round drafts is decided by rounds before it (DESIGN invariant 5).
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

from ..types import DraftBatch

Numbers = NDArray[Any]


def log_odds(chance: float) -> float:
    return math.log(chance / (1.0 - chance))


KNOTS = tuple(log_odds(q) for q in (0.03, 0.1, 0.25, 0.5, 0.75, 0.95))
POINTS = (0.003, 0.03, 0.1, 0.17, 0.25, 0.37, 0.5, 0.62, 0.75, 0.86, 0.95, 0.995)  # of the curve that a round uses
LOG_POINTS = tuple(map(math.log, POINTS))
POINT_ARRAY = np.array(LOG_POINTS, dtype=np.float32)
MIDDLES = tuple((a + b) / 2 for a, b in pairwise(KNOTS))  # a claim belongs to the nearest knot
EVERYONE_WEIGHT = 8.0  # tries that "the drafter is right about itself" is worth at each knot
OWN_WEIGHT = 6.0  # precision of "this sequence is like the others": they differ by some 0.4 in log-odds
EVERYONE_FADE, OWN_FADE = 0.998, 0.97  # a round
SUREST = 1 - 1e-6


@dataclass(slots=True)
class Claims:
    """What was drafted for a sequence, until the text tells what came of it. Parents stand before their children."""

    token: list[int]
    parent: list[int]  # -1 = root
    said: list[float]  # log-probability of each token behind its parent, as the drafter gave it
    first: list[int]  # whether it was the likeliest behind its parent

    def tested(self, wrote: Seq[int]) -> Iterator[tuple[int, bool]]:
        """Nodes that the text reached, and whether it took them."""
        at = -1
        for token in wrote:
            reached = [node for node, parent in enumerate(self.parent) if parent == at]
            yield from ((node, self.token[node] == token) for node in reached)
            at = next((node for node in reached if self.token[node] == token), -2)


@dataclass(slots=True)
class Tries:
    """Claims near one knot."""

    hits: float = 0.0
    count: float = 0.0
    said: float = 0.0  # sum of probabilities as given

    @property
    def shift(self) -> float:
        """From what was said to what happened, in log-odds; none before anything happened."""
        if not self.count:
            return 0.0
        said = min(self.said / self.count, SUREST)
        found = (self.hits + EVERYONE_WEIGHT * said) / (self.count + EVERYONE_WEIGHT)
        return log_odds(min(max(found, 1 - SUREST), SUREST)) - log_odds(said)

    def fade(self) -> None:
        self.hits, self.count, self.said = (EVERYONE_FADE * x for x in (self.hits, self.count, self.said))


@dataclass(slots=True)
class Own:
    """How far a sequence departs from all others: the first step of Newton's method from no departure."""

    surplus: float = 0.0  # hits beyond those expected
    spread: float = 0.0  # their variance if it were like the others

    @property
    def shift(self) -> float:
        return self.surplus / (self.spread + OWN_WEIGHT)


@dataclass(frozen=True, slots=True)
class Curve:
    """Chances for the probabilities that a drafter gives in one round; their logarithms are linear between points."""

    first: Numbers  # [B, 1, k] where pieces of a sequence begin, for the likeliest token behind a node and for others
    slope: Numbers  # [B * 2 * (P + 1)] of all pieces
    offset: Numbers

    def __call__(self, said: Tensor) -> Tensor:
        """[B, w, k] log-chances of the k likeliest tokens behind w nodes, from log-probabilities that fall along k."""
        return torch.from_numpy(self.on_host(said.cpu().numpy())).to(said.device)

    def on_host(self, said: Numbers) -> Numbers:
        """The same in numpy."""
        piece = POINT_ARRAY.searchsorted(said) + self.first[:, :, : said.shape[2]]
        chances: Numbers = self.slope[piece] * said + self.offset[piece]
        return chances


@dataclass(slots=True)
class Calibration:
    """A drafter's record with its own probabilities."""

    everyone: tuple[list[Tries], list[Tries]] = field(  # of the likeliest tokens behind their nodes, of all others
        default_factory=lambda: ([Tries() for _ in KNOTS], [Tries() for _ in KNOTS])
    )
    own: dict[int, Own] = field(default_factory=dict)
    claims: dict[int, Claims] = field(default_factory=dict)  # sequence -> its round under way

    def curve(self, ids: Seq[int], width: int) -> Curve:
        """For sequences `ids`, and at most `width` tokens behind a node."""
        heights = [[_at(knots, log_odds(q)) for q in POINTS] for knots in map(_heights, self.everyone)]
        own = [self.own[each].shift if each in self.own else 0.0 for each in ids]
        pieces = [piece for shift in own for line in heights for piece in _pieces(line, shift)]
        slope, offset = np.array(pieces, dtype=np.float32).T
        first = [[[(len(POINTS) + 1) * (2 * b + (k > 0)) for k in range(width)]] for b in range(len(ids))]
        return Curve(np.array(first), slope, offset)

    def claim(self, ids: Seq[int], drafts: DraftBatch, said: Tensor, first: Tensor) -> None:
        """These drafts go to the verifier, of which the drafter `said` these log-probabilities, and which were the
        `first` behind their parents; both [B, N]."""
        columns = torch.stack((drafts.token, drafts.parent, first)).tolist()
        for b, (each, n, logs) in enumerate(zip(ids, drafts.lengths(), said.tolist(), strict=True)):
            token, parent, top = (column[b][:n] for column in columns)
            self.claims[each] = Claims(token, parent, logs[:n], top)

    def observe(self, sequence: int, wrote: Seq[int]) -> None:
        """What the target wrote in the round that was claimed for; without a claim there is nothing to learn."""
        claims = self.claims.pop(sequence, None)
        if claims is None or not claims.token:
            return
        heights = [_heights(tries) for tries in self.everyone]
        own = self.own.setdefault(sequence, Own())
        own.surplus, own.spread = OWN_FADE * own.surplus, OWN_FADE * own.spread
        for tries in (*self.everyone[0], *self.everyone[1]):
            tries.fade()
        for node, hit in claims.tested(wrote):
            chance, other = min(max(math.exp(claims.said[node]), 1 - SUREST), SUREST), not claims.first[node]
            said = log_odds(chance)
            expected = _sigmoid(_at(heights[other], said))
            own.surplus += hit - expected
            own.spread += expected * (1 - expected)
            near = self.everyone[other][bisect_right(MIDDLES, said)]
            near.hits, near.count, near.said = near.hits + hit, near.count + 1, near.said + chance

    def end(self, sequence: int) -> None:
        self.own.pop(sequence, None)
        self.claims.pop(sequence, None)


def _heights(tries: Seq[Tries]) -> list[float]:
    """Log-odds of the chance at every knot. They never fall, since what is said to be likelier is not taken for less:
    neighbours that would are pooled, weighted by their evidence."""
    pools: list[tuple[float, float, int]] = []  # height, weight, knots
    for knot, each in zip(KNOTS, tries, strict=True):
        height, weight, size = knot + each.shift, each.count + 1.0, 1
        while pools and pools[-1][0] > height:
            other, heavy, more = pools.pop()
            height, weight = (height * weight + other * heavy) / (weight + heavy), weight + heavy
            size += more
        pools.append((height, weight, size))
    return [height for height, _, size in pools for _ in range(size)]


def _at(heights: Seq[float], said: float) -> float:
    """The height anywhere: linear between knots, and beyond them as far from what was said as at the last of them."""
    right = bisect_right(KNOTS, said)
    if right in (0, len(KNOTS)):
        end = min(right, len(KNOTS) - 1)
        return said + heights[end] - KNOTS[end]
    (x, next_x), (y, next_y) = KNOTS[right - 1 : right + 1], heights[right - 1 : right + 1]
    return y + (next_y - y) * (said - x) / (next_x - x)


def _pieces(heights: Seq[float], shift: float) -> list[tuple[float, float]]:
    """(slope, offset) of log-chance over log-probability: left of the first point, between points, right of the last.

    Left of them all it falls as fast as what is said; what is surer than the last point is as good as that.
    """
    logs = [-math.log1p(math.exp(-max(height + shift, -60.0))) for height in heights]
    pieces = [(1.0, logs[0] - LOG_POINTS[0])]
    for x, next_x, y, next_y in zip(LOG_POINTS, LOG_POINTS[1:], logs, logs[1:], strict=False):
        slope = (next_y - y) / (next_x - x)
        pieces.append((slope, y - slope * x))
    return [*pieces, (0.0, logs[-1])]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, x))))
