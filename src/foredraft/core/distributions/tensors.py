"""Distributions that tensors hold: dense rows, point masses, and draft distributions over a smaller vocabulary.

They implement the protocols of `types.distributions`. Nothing here knows where the numbers came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...types import Distribution
from ..host_look import may_look
from ..rng.hashing import exponentials

_BLOCK = 256  # tokens per block of a race


@dataclass(frozen=True, slots=True)
class DenseDistribution:
    """Probabilities written out, [B, V]."""

    probs: Tensor

    def prob(self, token: Tensor) -> Tensor:
        return self.probs.gather(1, token[:, None])[:, 0]

    def dense(self) -> Tensor:
        return self.probs.clone()

    def draw(self, uniform: Tensor) -> Tensor:
        return inverse_cdf(self.probs, uniform)

    def race(self, key: Tensor) -> Tensor:
        return race(self.probs, key)

    def choose(self, index: Tensor) -> Distribution:
        return DenseDistribution(self.probs[index])

    def to(self, device: torch.device) -> Distribution:
        return DenseDistribution(self.probs.to(device))


@dataclass(frozen=True, slots=True)
class PointMass:
    """All mass on one token per sequence: the limit of temperature 0, without a row of zeros to carry."""

    token: Tensor  # [B]
    vocab: int
    dtype: torch.dtype = torch.float32

    def prob(self, token: Tensor) -> Tensor:
        return (token == self.token).to(self.dtype)

    def dense(self) -> Tensor:
        out = torch.zeros((self.token.shape[0], self.vocab), dtype=self.dtype, device=self.token.device)
        return out.scatter_(1, self.token[:, None], 1.0)

    def draw(self, uniform: Tensor) -> Tensor:
        return self.token

    def race(self, key: Tensor) -> Tensor:
        return self.token

    def choose(self, index: Tensor) -> Distribution:
        return PointMass(self.token[index], self.vocab, self.dtype)

    def to(self, device: torch.device) -> Distribution:
        return PointMass(self.token.to(device), self.vocab, self.dtype)


@dataclass(frozen=True, slots=True)
class MappedDistribution:
    """A distribution over a reduced draft vocabulary, in target ids: zero where the drafter has no such token."""

    inner: Distribution
    ids: Tensor  # [Vd] target id of each draft id
    index: Tensor  # [V] draft id of each target id, -1 where there is none

    def prob(self, token: Tensor) -> Tensor:
        local = self.index[token]
        return torch.where(local >= 0, self.inner.prob(local.clamp(min=0)), 0.0)

    def dense(self) -> Tensor:
        local = self.inner.dense()
        out = torch.zeros((local.shape[0], self.index.shape[0]), dtype=local.dtype, device=local.device)
        return out.index_copy_(1, self.ids, local)

    def draw(self, uniform: Tensor) -> Tensor:
        return self.ids[self.inner.draw(uniform)]

    def race(self, key: Tensor) -> Tensor:
        return self.ids[self.inner.race(key)]

    def choose(self, index: Tensor) -> Distribution:
        return MappedDistribution(self.inner.choose(index), self.ids, self.index)

    def to(self, device: torch.device) -> Distribution:
        return MappedDistribution(self.inner.to(device), self.ids.to(device), self.index.to(device))


def sure_token(distribution: Distribution) -> Tensor | None:
    """[B] the tokens of point masses, else None: where the token is certain no random number is needed."""
    if isinstance(distribution, PointMass):
        return distribution.token
    if isinstance(distribution, MappedDistribution):
        inner = sure_token(distribution.inner)
        return None if inner is None else distribution.ids[inner]
    return None


@dataclass(frozen=True, slots=True)
class TableDistributions:
    """Probabilities of every row written out, [B, R, V]; for tests, analysis and small drafters."""

    probs: Tensor

    def at(self, row: Tensor) -> Distribution:
        index = row[:, None, None].expand(-1, 1, self.probs.shape[2])
        return DenseDistribution(self.probs.gather(1, index)[:, 0])


@dataclass(frozen=True, slots=True)
class DraftTable:
    """Draft distributions of every row written out, [B, R, Vd], over a vocabulary that may be smaller."""

    probs: Tensor
    ids: Tensor | None = None  # [Vd] target id of each draft id; None = the same
    index: Tensor | None = None  # [V] draft id of each target id, -1 where there is none

    def at(self, row: Tensor) -> Distribution:
        inner = TableDistributions(self.probs).at(row.clamp(max=self.probs.shape[1] - 1))
        if self.ids is None or self.index is None:
            return inner
        return MappedDistribution(inner, self.ids, self.index)


@dataclass(frozen=True, slots=True)
class PointMasses:
    """The distributions of greedy chains [B, N]: row i is a point mass at token i."""

    token: Tensor
    vocab: int

    def at(self, row: Tensor) -> Distribution:
        return PointMass(self.token.gather(1, row[:, None].clamp(max=self.token.shape[1] - 1))[:, 0], self.vocab)


@dataclass(frozen=True, slots=True)
class LazyDistributions:
    """Distributions computed by a function when a row is visited."""

    compute: Callable[[Tensor], Distribution]

    def at(self, row: Tensor) -> Distribution:
        return self.compute(row)


def race(probs: Tensor, key: Tensor) -> Tensor:
    """One exponential race per row of [B, V]: the token with the largest p / E wins, E one exponential per token.

    Run as two races, among blocks of tokens by their mass and then inside the winner: the same distribution for fewer
    hashes.
    """
    batch, vocab = probs.shape
    if vocab <= _BLOCK:
        return (probs / exponentials(key, vocab).to(probs.dtype)).argmax(dim=1)
    blocks = F.pad(probs, (0, -vocab % _BLOCK)).view(batch, -1, _BLOCK)
    mass = blocks.sum(dim=2)
    noise = exponentials(key, mass.shape[1] + _BLOCK).to(probs.dtype)
    block = (mass / noise[:, _BLOCK:]).argmax(dim=1)
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, _BLOCK))[:, 0]
    return block * _BLOCK + (inside / noise[:, :_BLOCK]).argmax(dim=1)


def inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row of [B, V] by its uniform. Rows need not be normalised.

    The sum runs in float64: a float32 sum over 10^5 entries is off by more than the rare tokens' probabilities.
    """
    cdf = probs.to(torch.float64).cumsum(dim=1)
    total = cdf[:, -1:]
    # Rounding may push u * total up to the total itself, beyond which there is no token.
    below = torch.nextafter(total, torch.zeros_like(total))
    place = torch.minimum(uniform.to(torch.float64)[:, None] * total, below)
    return torch.searchsorted(cdf, place, right=True)[:, 0].clamp(max=probs.shape[1] - 1)  # a row of NaN has no place


def normalise(weights: Tensor, fallback: Tensor) -> Tensor:
    """weights / sum per row; rows without mass (p == q up to rounding) take `fallback`. Negatives must be clamped."""
    total = weights.sum(dim=1, keepdim=True)
    return pick_rows(total > 0, weights / total.clamp(min=torch.finfo(weights.dtype).tiny), fallback)


def pick_rows(first: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Rows of a [B, V] where `first` [B, 1], else of b. The host looks before it passes over the vocabulary."""
    return a if may_look(first) and bool(first.all()) else torch.where(first, a, b)
