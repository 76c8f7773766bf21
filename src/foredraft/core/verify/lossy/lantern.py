"""LANTERN (2024) and LANTERN++ (2025): neighbouring codes of a codebook count as one another. Lossy, for any modality.

Image tokens have flat distributions, so exact tests reject nearly everything. Here the probability of a candidate x is
pooled with that of its nearest codes, nearest first, as long as the pooled mass stays within a budget: delta (LANTERN),
or (lam - 1) R(x) (LANTERN++), R being what is left of p. A rejection takes S off R, but not off the neighbours of a
pooled candidate. The neighbour table [V, k_max] lists for each code the others by distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....errors import UsageError
from ....types import Kind, Reason
from ...distributions.tensors import DenseDistribution, normalise
from ...rng.keyed import Purpose
from ..base import Array, BatchCase, Rule, TreeCase
from ..exact.rejection import (
    Relax,
    emit,
    emit_batch,
    flip_ratio,
    flip_rest,
    point,
    ratio,
    residual,
    walk_with_batched_rng,
)
from ..second_chance import NO, SecondChance, temperature_one_row, temperature_one_row_batch, with_second_chance
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk
from .lenience import two_part_test


def nearest_codes(codebook: Tensor, count: int) -> Tensor:
    """[V, count] int64: for each code [V, d] the others by increasing distance."""
    distance = torch.cdist(codebook, codebook)
    distance.fill_diagonal_(torch.inf)
    return distance.sort(dim=1, stable=True).indices[:, :count]


@dataclass(frozen=True, slots=True)
class Pooling:
    """Neighbours, and the budget for pooling them: add + times * R(x)."""

    near: Tensor  # [V, k_max] int64
    k: int  # neighbours that may be pooled
    add: float = 0.0
    times: float = 0.0

    def table(self) -> NDArray[np.int64]:
        return np.asarray(self.near.cpu().numpy())

    def mass(self, r: Array, token: int) -> float:
        """What pooling adds to R(token): the longest run of neighbours within the budget."""
        sums = np.cumsum(r[self.table()[token, : self.k]])
        inside = sums[sums <= self.add + self.times * r[token]]
        return float(inside[-1]) if inside.size else 0.0

    def mass_batch(self, r: Tensor, token: Tensor) -> Tensor:
        """[B] the same for one token per sequence."""
        sums = r.gather(1, self.near.to(r.device)[token, : self.k]).cumsum(dim=1)
        budget = self.add + self.times * r.gather(1, token[:, None])
        return torch.where(sums <= budget, sums, 0.0).amax(dim=1)


def solve_lantern(pooling: Pooling, node: Node) -> Step:
    if not node.children:
        return emit(node, node.p)
    chosen = node.kind == Kind.CHOSEN
    r, q = node.p, node.p if chosen else node.draft()
    for child in node.children:
        y, s = child.token, point(child.token, r.size) if chosen else q
        extra = pooling.mass(r, y)
        step = two_part_test(node, child, ratio(r[y], s[y]), ratio(r[y] + extra, s[y]))
        if step is not None:
            return step
        off = s.copy()
        if extra > 0:  # chosen: the neighbours go with the candidate; drawn: they keep what they have
            off[pooling.table()[y, : pooling.k + 1]] = 1.0 if chosen else 0.0
        r, q = residual(r, off), residual(q, q[y] * point(y, q.size))
    return emit(node, r)


def solve_lantern_batch(pooling: Pooling, node: NodeBatch) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    r, chosen = node.p.dense(), node.chosen()[:, None]
    q = torch.zeros_like(r) if node.drafts.distributions is None else node.draft_distribution().dense().to(r.dtype)
    slot, late = torch.full_like(node.index, -1), torch.zeros_like(node.index)
    for k in range(node.child.shape[1]):
        present, token = node.child[:, k] >= 0, node.token[:, k : k + 1].clamp(min=0)
        own, s = r.gather(1, token)[:, 0], torch.where(chosen, 1.0, q.gather(1, token))[:, 0]
        passed = flip_ratio(node, own, s, node.child[:, k], 0)
        slot = torch.where((slot < 0) & present & passed, k, slot)
        if node.settled(slot):
            return StepBatch(slot, slot, late)
        extra = pooling.mass_batch(r, token[:, 0])
        wide = flip_rest(node, own, s, Relax(boost=extra.double().add), node.child[:, k])
        late = torch.where((slot < 0) & present & wide, int(Reason.RELAXED), late)
        slot = torch.where((slot < 0) & present & wide, k, slot)
        if node.settled(slot):
            return StepBatch(slot, slot, late)
        r = _rest(pooling, r, q, token, chosen, (extra > 0)[:, None], present[:, None])
        if node.drafts.distributions is not None:
            q = normalise(q.scatter(1, token, q.gather(1, token) * ~present[:, None]), q)
    return StepBatch(slot, node.rng.draw(DenseDistribution(r), Purpose.OWN, node.index), late)


def _rest(
    pooling: Pooling, r: Tensor, q: Tensor, token: Tensor, chosen: Tensor, pooled: Tensor, present: Tensor
) -> Tensor:
    """[B, V] R after a rejection of `token` [B, 1]; r is not changed."""
    drawn = (present & ~chosen).to(r.dtype)
    rest = torch.relu_(torch.addcmul(r, drawn, q, value=-1))
    rest.scatter_(1, token, rest.gather(1, token) * ~(present & chosen))
    near = pooling.near.to(r.device)[token[:, 0], : pooling.k + 1]
    # Where the candidate was pooled, chosen: the neighbours go with it; drawn: they keep what they have.
    rest.scatter_(1, near, torch.where(present & pooled, r.gather(1, near) * drawn, rest.gather(1, near)))
    return normalise(rest, r)


def _argmax_after_pooling(pooling: Pooling) -> SecondChance:
    """Greedy mode: x passes if its pooled probability is the largest of the row."""

    def score(case: TreeCase, node: Node) -> Sequence[float]:
        p = temperature_one_row(case, node.index + 1)
        pooled = [float(p[child.token]) + pooling.mass(p, child.token) for child in node.children]
        return [value if value >= p.max() else NO for value in pooled]

    def score_batch(case: BatchCase, node: NodeBatch) -> Tensor:
        p = temperature_one_row_batch(case, node.index + 1).dense()
        token = node.token.clamp(min=0)
        pooled = [
            p.gather(1, token[:, k : k + 1])[:, 0] + pooling.mass_batch(p, token[:, k]) for k in range(token.shape[1])
        ]
        values = torch.stack(pooled, dim=1)
        return torch.where(values >= p.amax(dim=1, keepdim=True), values, NO)

    return SecondChance(score, score_batch)


def lantern(near: Tensor, k: int = 1000, delta: float = 0.1, greedy: bool = False) -> Rule:
    """LANTERN: `near` [V, k_max] from `nearest_codes`; at most k of them are pooled, up to the mass delta.

    greedy: the test for temperature 0, an argmax over pooled probabilities. delta 0 is the exact rule.
    """
    _check(near, delta >= 0, "lantern: delta is 0 or positive")
    return _rule("lantern", Pooling(near, k, add=delta), greedy)


def lantern_pp(near: Tensor, k: int = 10, lam: float = 5.0, greedy: bool = False) -> Rule:
    """LANTERN++: pooled probability at most lam times the token's own. lam 1 is the exact rule."""
    _check(near, lam >= 1, "lantern++: lam is at least 1")
    return _rule("lantern++", Pooling(near, k, times=lam - 1.0), greedy)


def _check(near: Tensor, fits: bool, message: str) -> None:
    if near.ndim != 2:
        raise UsageError("lantern: the neighbour table is [V, k], as nearest_codes makes it")
    if not fits:
        raise UsageError(message)


def _rule(name: str, pooling: Pooling, greedy: bool) -> Rule:
    summary = "a token may borrow the probability of its nearest codes, within a budget (lossy)"
    if greedy:
        return with_second_chance(name, summary, _argmax_after_pooling(pooling), needs_temperature_one=True)
    return Rule(
        name=name,
        summary=summary,
        exact_for=frozenset(),
        verify=partial(walk, partial(solve_lantern, pooling)),
        verify_batch=partial(walk_with_batched_rng, partial(solve_lantern_batch, pooling)),
        lossy=True,
    )
