"""Randomness as a pure function: the same key always gives the same number.

A uniform is a hash of (request seed, counter, node, purpose). Nothing is consumed from a stream, so a request's text
does not depend on its batch mates, and a round can be replayed from its keys alone. The exact interpreter
(`core.rng.enumerating`) replaces this rng with one that visits every outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from ...types import Distribution
from ..distributions.tensors import sure_token
from .hashing import hashed_uniform, state_of


class Purpose(IntEnum):
    """What a random number is for. Different purposes are independent."""

    EMIT = 0  # the target's own token at an absolute position (plain decoding, sample-and-match)
    ACCEPT = 1  # acceptance tests
    OWN = 2  # the target's own token after the accepted path: correction or bonus
    DRAFT = 3  # drawing drafts
    ORDER = 4  # shuffling i.i.d. siblings
    POLICY = 5  # randomised length rules; never read by a verifier
    SELECT = 6  # choosing one of several drafts (canonical decomposition)


class Rng(Protocol):
    """One random number per sequence of a batch. `node` is a tree node (or any small counter), -1 = the root."""

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        """[B] bool: True with probability `prob`. Strict (u < prob): 0 never passes, 1 always does."""

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        """[B] tokens drawn from `distribution`."""

    def draw_at(self, distribution: Distribution, depth: Tensor) -> Tensor:
        """[B] tokens drawn with the random numbers of the absolute position `depth` tokens after the root.

        Whoever decides that position, in whatever round, uses the same numbers: the text of a seed is then the same
        with speculation on, off or batched.
        """

    def choose(self, index: Tensor) -> Rng:
        """The rng of a part of the batch."""

    def to(self, device: torch.device) -> Rng:
        """The same rng on another device."""


@dataclass(frozen=True, slots=True)
class KeyedRng:
    """The rng of the engine: uniforms hashed from keys, on the batch's device."""

    seed: Tensor  # [B] int64
    round: Tensor  # [B] int64, verification rounds so far
    position: Tensor  # [B] int64, absolute position of the root; depth d lies d after it

    def uniform(self, counter: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        """[B] float64 in [0, 1)."""
        return hashed_uniform(self.seed, counter, node, int(purpose), attempt)

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        return self.uniform(self.round, purpose, node, attempt) < prob

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        sure = sure_token(distribution)
        return distribution.draw(self.uniform(self.round, purpose, node, attempt)) if sure is None else sure

    def draw_at(self, distribution: Distribution, depth: Tensor) -> Tensor:
        sure = sure_token(distribution)
        if sure is not None:
            return sure
        return distribution.race(
            state_of(self.seed, self.position + depth, torch.zeros_like(depth), int(Purpose.EMIT), 0)
        )

    def draw_rows(self, distribution: Distribution, depth: Tensor) -> Tensor:
        """[B, n] what `draw_at` gives for depth [B, n] at once; row b * n + i of the distribution is depth[b, i]'s."""
        place = self.position[:, None] + depth
        key = state_of(self.seed[:, None], place, torch.zeros_like(depth), int(Purpose.EMIT), 0)
        return distribution.race(key.flatten()).view_as(depth)

    def choose(self, index: Tensor) -> KeyedRng:
        return KeyedRng(self.seed[index], self.round[index], self.position[index])

    def to(self, device: torch.device) -> KeyedRng:
        return KeyedRng(self.seed.to(device), self.round.to(device), self.position.to(device))


class LazyRng(KeyedRng):
    """The same, whose keys are copied to the device on the first draw: greedy requests never draw."""

    __slots__ = ("_bring", "_brought")
    _bring: Callable[[], Tensor]
    _brought: Tensor | None

    def __init__(self, bring: Callable[[], Tensor]) -> None:
        """bring() is [3, B]: seeds, rounds, positions."""
        object.__setattr__(self, "_bring", bring)
        object.__setattr__(self, "_brought", None)

    def _keys(self) -> Tensor:
        brought = self._brought
        if brought is None:
            brought = self._bring()
            object.__setattr__(self, "_brought", brought)
        return brought

    @property
    def seed(self) -> Tensor:
        return self._keys()[0]

    @property
    def round(self) -> Tensor:
        return self._keys()[1]

    @property
    def position(self) -> Tensor:
        return self._keys()[2]

    def to(self, device: torch.device) -> KeyedRng:
        return LazyRng(lambda: self._keys().to(device))
