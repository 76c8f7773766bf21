"""The random numbers of one round in one go: the same numbers as `KeyedRng` gives one by one.

A random number is a pure function of its key, so it may be computed in whatever way is cheap: for a few sequences on
the host by plain integers, otherwise for all nodes of the round in one hash. An rng without keys (`EnumeratingRng`) is
returned as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Distribution
from ..distributions.tensors import sure_token
from ..host_look import may_look
from .hashing import hashed_uniform, uniform_of
from .keyed import KeyedRng, Purpose, Rng

_FEW = 16  # sequences up to which plain integers beat forty small tensor operations


@dataclass(frozen=True, slots=True)
class BatchedRng:
    """Keyed rng of one round. One of `keys` and `accept` is set."""

    rng: KeyedRng
    keys: list[tuple[int, int]] | None  # (seed, round) of each sequence
    accept: Tensor | None  # [B, N + 1] float64 uniforms of `purpose`, attempt 0; column i + 1 belongs to node i
    purpose: Purpose = Purpose.ACCEPT

    def uniform(self, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        """[B] float64 in [0, 1)."""
        if self.keys is not None:
            which = zip(self.keys, node.tolist(), strict=True)
            uniforms = [uniform_of(seed, round, n, int(purpose), attempt) for (seed, round), n in which]
            return torch.tensor(uniforms, dtype=torch.float64)
        if self.accept is not None and purpose == self.purpose and attempt == 0:
            return self.accept.gather(1, node[:, None] + 1)[:, 0]
        return self.rng.uniform(self.rng.round, purpose, node, attempt)

    def accepts(self, node: Tensor) -> Tensor:
        """[B, C] uniforms of the acceptance tests of several nodes per sequence."""
        if self.accept is not None:
            return self.accept.gather(1, node + 1)
        which = zip(self.keys or (), node.tolist(), strict=True)
        uniforms = [[uniform_of(*key, n, int(Purpose.ACCEPT), 0) for n in row] for key, row in which]
        return torch.tensor(uniforms, dtype=torch.float64)

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        return self.uniform(purpose, node, attempt) < prob

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        sure = sure_token(distribution)
        return distribution.draw(self.uniform(purpose, node, attempt)) if sure is None else sure

    def draw_at(self, distribution: Distribution, depth: Tensor) -> Tensor:
        return self.rng.draw_at(distribution, depth)

    def choose(self, index: Tensor) -> Rng:
        return self.rng.choose(index)

    def to(self, device: torch.device) -> Rng:
        return self.rng.to(device)


def batched_rng(rng: Rng, nodes: int, purpose: Purpose = Purpose.ACCEPT) -> Rng:
    """The same rng, faster for a round with that many drafted nodes, whose numbers are mostly for this purpose."""
    if not isinstance(rng, KeyedRng):
        return rng
    if may_look(rng.seed) and rng.seed.shape[0] <= _FEW:
        return BatchedRng(rng, list(zip(rng.seed.tolist(), rng.round.tolist(), strict=True)), None)
    node = torch.arange(-1, nodes, device=rng.seed.device)[None, :]
    uniforms = hashed_uniform(rng.seed[:, None], rng.round[:, None], node, int(purpose), 0)
    return BatchedRng(rng, None, uniforms, purpose)


def first_pass(rng: Rng, prob: Tensor, node: Tensor) -> Tensor:
    """[B] int64: the first column whose acceptance test passes, -1 = none. prob [B, C]; node [B, C], -1 = absent.

    For tests whose probabilities are known before the first of them is made.
    """
    if isinstance(rng, BatchedRng):
        passed = all_tests(rng, prob, node)
        return torch.where(passed.any(dim=1), passed.to(torch.int8).argmax(dim=1), -1)
    slot = torch.full_like(node[:, 0], -1)
    for k in range(node.shape[1]):
        passed = rng.flip(prob[:, k], Purpose.ACCEPT, node[:, k]) & (node[:, k] >= 0)
        slot = torch.where(passed & (slot < 0), k, slot)
        if may_look(slot) and bool((slot >= 0).all()):
            break
    return slot


def all_tests(rng: Rng, prob: Tensor, node: Tensor) -> Tensor:
    """[B, C] bool: which acceptance tests pass. prob [B, C]; node [B, C], -1 = absent, which never passes."""
    if isinstance(rng, BatchedRng):
        return (rng.accepts(node) < prob) & (node >= 0)
    prob = prob * (node >= 0)
    passed = [rng.flip(prob[:, k], Purpose.ACCEPT, node[:, k]) for k in range(node.shape[1])]
    return torch.stack(passed, dim=1)
