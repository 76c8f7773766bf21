"""Randomness as a pure function: the same key always rolls the same number.

A uniform is a hash of (request seed, counter, node, purpose). Nothing is consumed from a stream, so a request's text
does not depend on its batch mates, and a round can be replayed from its keys alone. The exact interpreter
(`core.exact`) replaces these dice with dice that fall on every side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from ..types import Law

_MASK = (1 << 64) - 1
# Odd constants of the SplitMix64 finaliser (Steele, Lea and Flood, 2014).
_GOLDEN, _MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a roll is for. Different purposes are independent."""

    EMIT = 0  # the target's own token at an absolute position (plain decoding, sample-and-match)
    ACCEPT = 1  # acceptance tests
    OWN = 2  # the target's own token behind the accepted path: correction or bonus
    DRAFT = 3  # drawing drafts
    ORDER = 4  # shuffling i.i.d. siblings
    POLICY = 5  # randomised length rules; never read by a verifier
    SELECT = 6  # choosing one of several drafts (canonical decomposition)


class Dice(Protocol):
    """One roll per sequence of a batch. `node` is a tree node (or any small counter), -1 = the root."""

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        """[B] bool: True with probability `prob`. Strict (u < prob): 0 never passes, 1 always does."""

    def draw(self, law: Law, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        """[B] tokens drawn from `law`."""

    def draw_at(self, law: Law, depth: Tensor) -> Tensor:
        """[B] tokens drawn with the uniform of the absolute position `depth` tokens behind the root.

        Whoever decides that position, in whatever round, rolls the same number: the text of a seed is then the same
        with speculation on, off or batched.
        """

    def choose(self, index: Tensor) -> Dice:
        """The dice of a part of the batch."""


@dataclass(frozen=True, slots=True)
class KeyedDice:
    """The dice of production: uniforms hashed from keys, on the batch's device."""

    seed: Tensor  # [B] int64
    round: Tensor  # [B] int64, verification rounds so far
    position: Tensor  # [B] int64, tokens committed, i.e. the absolute position of the root's successor

    def uniform(self, counter: Tensor, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        """[B] float64 in [0, 1)."""
        return hashed_uniform(self.seed, counter, node, int(purpose), turn)

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        return self.uniform(self.round, purpose, node, turn) < prob

    def draw(self, law: Law, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        return law.draw(self.uniform(self.round, purpose, node, turn))

    def draw_at(self, law: Law, depth: Tensor) -> Tensor:
        return law.draw(self.uniform(self.position + depth, Purpose.EMIT, torch.zeros_like(depth)))

    def choose(self, index: Tensor) -> KeyedDice:
        return KeyedDice(self.seed[index], self.round[index], self.position[index])


def hashed_uniform(seed: Tensor, counter: Tensor, node: Tensor, purpose: int, turn: int) -> Tensor:
    """Uniforms in [0, 1) from int64 keys, elementwise; 53 random bits each."""
    state = _mix(seed + _signed(_GOLDEN))
    state = _mix(state ^ (counter * _signed(_MIX_A) + purpose))
    state = _mix(state ^ (node * _signed(_MIX_B) + turn))
    return _shift(state, 11).to(torch.float64) * 2.0**-53


def uniform_of(seed: int, counter: int, node: int, purpose: int, turn: int) -> float:
    """`hashed_uniform` on Python integers, the slow twin."""
    state = _mix_int(seed + _GOLDEN)
    state = _mix_int(state ^ ((counter * _MIX_A + purpose) & _MASK))
    state = _mix_int(state ^ ((node * _MIX_B + turn) & _MASK))
    return (state >> 11) * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX_A)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_B)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, whose own >> keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_int(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * _MIX_A) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_B) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
