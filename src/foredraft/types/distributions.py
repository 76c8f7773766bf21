"""Probability distributions as the rules see them: something to look tokens up in and to draw from.

`Distributions` holds one distribution per tree row and sequence and computes a row only when a rule visits it, so that
a walk of three nodes through a tree of sixty never pays for sixty softmaxes. `Distribution` is one visited row of each
sequence. Rows are numbered like the target's forward pass: row 0 follows the root, row i + 1 follows node i.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Distribution(Protocol):
    """One next-token distribution per sequence of the batch, over the target's vocabulary."""

    def prob(self, token: Tensor) -> Tensor:
        """Probability of one token per sequence: [B] int64 -> [B] float."""

    def dense(self) -> Tensor:
        """The whole distribution, [B, V]; a fresh tensor that the caller may change."""

    def draw(self, uniform: Tensor) -> Tensor:
        """Inverse-CDF draw: [B] uniforms in [0, 1) -> [B] tokens, never one of probability zero."""

    def race(self, key: Tensor) -> Tensor:
        """Draw by an exponential race among all tokens, keyed by [B] int64.

        Costlier than `draw`, but rounding errors of the distribution hardly ever change the outcome, while an
        inverse-CDF draw that lands among rare tokens moves with every rounding error before it.
        """

    def choose(self, index: Tensor) -> Distribution:
        """The distributions of a part of the batch."""

    def to(self, device: torch.device) -> Distribution:
        """The same distribution on another device."""


class Distributions(Protocol):
    """The distributions of all rows of a batch of trees, computed on demand."""

    def at(self, row: Tensor) -> Distribution:
        """The distribution at one row per sequence, [B] int64."""
