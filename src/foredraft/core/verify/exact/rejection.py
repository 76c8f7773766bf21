"""Rules that test candidates one after another against the target's residual distribution.

All are one loop: test candidate y with probability R(y) / S(y), where R is what is left of p and S is the distribution
that y was drawn from; after a rejection R becomes the normalised positive part of R - S. They differ in S:

  one-hot                       S is the point mass at y (the candidate was chosen, not drawn)
  residual                      S is q without the earlier siblings, renormalised (drawn without replacement)
  residual-iid                  S is q throughout, once per draw (SpecInfer's recursive rejection sampling)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....types import Distribution, Kind, Reason, Topology, Verdict
from ...distributions.tensors import DenseDistribution, pick_rows
from ...host_look import may_look
from ...rng.batched import batched_rng, first_pass
from ...rng.keyed import Purpose
from ..base import EVERY_KIND, Array, BatchCase, Rule, pairs
from ..tree_walk import BatchSolver, Child, Node, NodeBatch, Step, StepBatch, walk, walk_batch


def residual(r: Array, s: Array) -> Array:
    """Nrm([R - S]+); R itself where nothing is left, which only rounding can cause (p == q)."""
    rest = np.clip(r - s, 0.0, None)
    total = rest.sum()
    return np.asarray(rest / total) if total > 0 else r


def ratio(r: float, s: float) -> float:
    """Acceptance probability min(1, r / s); a candidate with s = 0 cannot have been drawn and is rejected."""
    return min(1.0, r / s) if s > 0 else 0.0


def emit(node: Node, r: Array) -> Step:
    """The target's own token from what the tests left over."""
    return Step(None, node.rng.draw(r, Purpose.OWN, node.index))


def solve_one_hot(node: Node) -> Step:
    """Accept y with probability R(y); else take y out of R."""
    r = node.p
    for child in node.children:
        if node.rng.flip(float(r[child.token]), Purpose.ACCEPT, child.node):
            return Step(child, child.token)
        r = residual(r, point(child.token, r.size))
    return emit(node, r)


def point(token: int, vocab: int) -> Array:
    distribution = np.zeros(vocab)
    distribution[token] = 1.0
    return distribution


def solve_residual(node: Node) -> Step:
    """Candidates in draw order, each drawn from q without its earlier siblings; chosen ones are point masses."""
    if node.kind == Kind.CHOSEN:
        return solve_one_hot(node)
    r, s = node.p, node.draft() if node.children else node.p
    for child in node.children:
        if s[child.token] <= 0:
            continue  # the draft distribution was used up: this cannot have been drawn, so it is no candidate
        if node.rng.flip(ratio(r[child.token], s[child.token]), Purpose.ACCEPT, child.node):
            return Step(child, child.token)
        r, s = residual(r, s), residual(s, s[child.token] * point(child.token, s.size))
    return emit(node, r)


def solve_iid(node: Node) -> Step:
    """Independent draws, tested in a random order of the draws.

    Equal draws are merged into one child with a multiplicity. Given the counts, every order of the draws is equally
    likely, so the order is drawn again here. Testing equal draws in a row instead is biased from three draws on.
    """
    r, q = node.p, node.draft() if node.children else node.p
    for attempt, child in shuffled(node):
        if node.rng.flip(ratio(r[child.token], q[child.token]), Purpose.ACCEPT, node.index, attempt):
            return Step(child, child.token)
        r = residual(r, q)
    return emit(node, r)


def shuffled(node: Node) -> Iterator[tuple[int, Child]]:
    """(attempt, child) of every independent draw, in a random order, drawn as it is asked for."""
    left = {child: child.multiplicity for child in node.children}
    for attempt in range(sum(left.values())):
        counts = np.array([float(n) for n in left.values()])
        child = list(left)[node.rng.draw(counts / counts.sum(), Purpose.ORDER, node.index, attempt)]
        left[child] -= 1
        yield attempt, child


def solve_one_hot_batch(node: NodeBatch) -> StepBatch:
    """All tests at once: R(y_j) = p(y_j) / (1 - p of the earlier candidates) is known before the first one falls."""
    if node.childless():
        return emit_batch(node, node.p)
    p, token, present = node.p.dense(), node.token.clamp(min=0), node.child >= 0
    own = p.gather(1, token).double() * present
    before = own.cumsum(dim=1) - own
    slot = first_pass(node.rng, (own / (1 - before).clamp(min=1e-30)).clamp(max=1.0), node.child)
    if node.settled(slot):
        return StepBatch(slot, slot)
    rest = p.scatter_add(1, token, -own.to(p.dtype)).clamp_(min=0)
    rest = pick_rows(rest.sum(dim=1, keepdim=True) > 0, rest, p)
    return StepBatch(slot, node.rng.draw(DenseDistribution(rest), Purpose.OWN, node.index))


def solve_residual_batch(node: NodeBatch) -> StepBatch:
    if node.drafts.node_kind is None and node.drafts.kind == Kind.CHOSEN:
        return solve_one_hot_batch(node)
    return reject_one_by_one(node)


@dataclass(slots=True)
class Left:
    """What is left of p at one node of every sequence: R = Nrm([p - beta q]+), zero on tested tokens.

    Every chain of residuals of drawn candidates has this form: S = q / left off the tested tokens, and
    Nrm([Nrm([p - beta q]+) - S]+) = Nrm([p - (beta + mass / left) q]+); a token that can be rejected has R < S and
    keeps no mass. So a rejection moves one number and costs one pass over the vocabulary.
    """

    p: Tensor  # [B, V], zero on tested tokens
    q: Tensor | None  # [B, V], zero on tested tokens
    beta: Tensor  # [B, 1], 0 where candidates are chosen
    mass: Tensor  # [B, 1] sum of [p - beta q]+
    left: Tensor  # [B, 1] sum of q; summed again each time, for 1 - q(tested) has no digits left where q is sure

    @classmethod
    def of(cls, node: NodeBatch) -> Left:
        p = node.p.dense()
        q = None if node.drafts.distributions is None else node.draft_distribution().dense().to(p.dtype)
        one = torch.ones_like(p[:, :1])
        return cls(p, q, torch.zeros_like(one), one, one)

    def distribution(self) -> Tensor:
        """[B, V] R, not normalised."""
        return self.p if self.q is None else torch.relu_(torch.addcmul(self.p, self.beta, self.q, value=-1))

    def at(self, token: Tensor) -> Tensor:
        """[B] R of one token."""
        over = self.p.gather(1, token)
        over = over if self.q is None else over - self.beta * self.q.gather(1, token)
        return torch.where(self.mass > 0, over.clamp(min=0) / self.mass, 0.0)[:, 0]

    def drop(self, token: Tensor, step: Tensor, gone: Tensor) -> None:
        """The rejection of `token` [B, 1], which was drawn from `step` * q; step 0 = the point mass at the token."""
        self.beta, keep = torch.where(gone, self.beta + self.mass * step, self.beta), ~gone
        self.p.scatter_(1, token, self.p.gather(1, token) * keep)
        if self.q is not None:
            self.q.scatter_(1, token, self.q.gather(1, token) * keep)
            self.left = self.q.sum(dim=1, keepdim=True).clamp(min=torch.finfo(self.q.dtype).tiny)
        self.mass = self.distribution().sum(dim=1, keepdim=True)

    def emit(self, node: NodeBatch, slot: Tensor, reason: Tensor | None = None) -> StepBatch:
        """The target's own token from what the tests left over; p itself where rounding left nothing."""
        distribution = self.distribution()
        if not may_look(distribution) or not bool((self.mass > 0).all()):
            distribution = torch.where(self.mass > 0, distribution, node.p.dense())
        return StepBatch(slot, node.rng.draw(DenseDistribution(distribution), Purpose.OWN, node.index), reason)


@dataclass(frozen=True, slots=True)
class Relax:
    """How a lossy rule lowers the threshold: it tests boost(R) / (lenience * S) and takes lenience * S off R."""

    lenience: float = 1.0
    boost: Callable[[Any], Any] = lambda r: r  # of a float or of a tensor


def reject_one_by_one(node: NodeBatch, relax: Relax | None = None) -> StepBatch:
    """The sequential test of `solve_residual` for a batch; chosen candidates are point masses."""
    if node.childless():
        return emit_batch(node, node.p)
    chosen = None if node.drafts.node_kind is None and node.drafts.kind != Kind.CHOSEN else node.chosen()[:, None]
    tokens, presents = node.token.clamp(min=0), node.child >= 0
    slot, late = torch.full_like(node.index, -1), None if relax is None else torch.zeros_like(node.index)
    scale = 1.0 if relax is None else relax.lenience
    left: Left | None = None
    for k in range(node.child.shape[1]):
        present, token = presents[:, k : k + 1], tokens[:, k : k + 1]
        r = node.p.prob(token[:, 0]) if left is None else left.at(token)  # the first test needs no dense row
        s = _draft_prob(node, left, token)
        s = s if chosen is None else torch.where(chosen[:, 0], 1.0, s)
        passed = flip_ratio(node, r, s, node.child[:, k], 0)
        slot = torch.where((slot < 0) & present[:, 0] & passed, k, slot)
        if relax is not None and late is not None and not node.settled(slot):
            wide = (slot < 0) & present[:, 0] & flip_rest(node, r, s, relax, node.child[:, k])
            late, slot = torch.where(wide, int(Reason.RELAXED), late), torch.where(wide, k, slot)
        if node.settled(slot):
            return StepBatch(slot, slot, late)
        left = Left.of(node) if left is None else left
        step = scale / left.left if chosen is None else torch.where(chosen, 0.0, scale / left.left)
        left.drop(token, step, present & (s > 0)[:, None])  # what cannot have been drawn costs its token nothing
    assert left is not None
    return left.emit(node, slot, late)


def flip_rest(node: NodeBatch, r: Tensor, s: Tensor, relax: Relax, key: Tensor) -> Tensor:
    """The second part of a lowered test, for what the first part, r / s, let fall."""
    strict, wide = _quotient(r, s), _quotient(relax.boost(r.double()), relax.lenience * s.double())
    prob = ((wide - strict) / (1 - strict)).masked_fill_(strict >= 1, 0.0)
    return node.rng.flip(prob, Purpose.ACCEPT, key, 1)


def _draft_prob(node: NodeBatch, left: Left | None, token: Tensor) -> Tensor:
    """[B] probability with which a token would be drawn next; 1 for chosen candidates, which have no distributions."""
    if node.drafts.distributions is None:
        return torch.ones_like(node.index, dtype=torch.float32)
    if left is None or left.q is None:
        return node.draft_distribution().prob(token[:, 0])
    return (left.q.gather(1, token) / left.left)[:, 0]


def solve_iid_batch(node: NodeBatch) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    distribution, slot = node.draft_distribution(), torch.full_like(node.index, -1)
    left: Left | None = None
    for attempt, k, present in draw_order(node):
        token = node.token.gather(1, k).clamp(min=0)
        r = node.p.prob(token[:, 0]) if left is None else left.at(token)  # the first test needs no dense row
        passed = flip_ratio(node, r, distribution.prob(token[:, 0]), node.index, attempt)
        slot = torch.where((slot < 0) & present[:, 0] & passed, k[:, 0], slot)
        if node.settled(slot):
            return StepBatch(slot, slot)
        left = Left.of(node) if left is None else left
        left.drop(token, torch.ones_like(left.mass), present)
    return (Left.of(node) if left is None else left).emit(node, slot)


def draw_order(node: NodeBatch) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Independent draws in a random order: (attempt, child column [B, 1], whether there is such a draw [B, 1])."""
    left = node.multiplicity()
    for attempt in range(int(left.sum(dim=1).max())):
        present = left.sum(dim=1, keepdim=True) > 0
        weight = torch.where(present, left, 1).to(torch.float64)
        k = torch.zeros_like(node.index)
        if left.shape[1] > 1:
            k = node.rng.draw(
                DenseDistribution(weight / weight.sum(dim=1, keepdim=True)), Purpose.ORDER, node.index, attempt
            )
        left = left.scatter_add(1, k[:, None], -present.to(torch.int64))
        yield attempt, k[:, None], present


def flip_ratio(node: NodeBatch, r: Tensor, s: Tensor, key: Tensor, attempt: int) -> Tensor:
    """Accept with min(1, r / s); a candidate with s = 0 cannot have been drawn and is rejected."""
    return node.rng.flip(_quotient(r, s), Purpose.ACCEPT, key, attempt)


def _quotient(r: Tensor, s: Tensor) -> Tensor:
    """[B] float64 min(1, r / s), 0 where s = 0."""
    return (r.double() / s.double()).clamp_(max=1.0).masked_fill_(s <= 0, 0.0)


def emit_batch(node: NodeBatch, distribution: Distribution) -> StepBatch:
    """Every sequence stops here with a token from `distribution`."""
    return StepBatch(torch.full_like(node.index, -1), node.rng.draw(distribution, Purpose.OWN, node.index))


def walk_with_batched_rng(solve: BatchSolver, case: BatchCase) -> Verdict:
    """`walk_batch` with the random numbers of the round hashed in one go."""
    return walk_batch(solve, replace(case, rng=batched_rng(case.rng, case.drafts.width)))


# With one child per node every sampled kind is the same thing: one draw from q.
ONE_DRAW = pairs(tuple(kind for kind in Kind if kind != Kind.CHOSEN), (Topology.CHAIN,))

ONE_HOT = Rule(
    name="one-hot",
    summary="test candidates one after another with their own probability; exact for any tree",
    exact_for=pairs(EVERY_KIND),
    verify=partial(walk, solve_one_hot),
    verify_batch=partial(walk_with_batched_rng, solve_one_hot_batch),
    blind=True,
    capturable=True,
)

RESIDUAL = Rule(
    name="residual",
    summary="p/q tests on candidates drawn without replacement; the classical rule on a chain",
    # Merged i.i.d. draws in order of first sight are draws without replacement, of which there may be fewer.
    exact_for=pairs(tuple(kind for kind in Kind if kind != Kind.TOP_THEN_SAMPLED)) | ONE_DRAW,
    verify=partial(walk, solve_residual),
    verify_batch=partial(walk_with_batched_rng, solve_residual_batch),
    capturable=True,
)

RESIDUAL_IID = Rule(
    name="residual-iid",
    summary="p/q tests on independent draws, the residual updated after each (SpecInfer)",
    exact_for=pairs((Kind.SAMPLED_IID,)) | ONE_DRAW,
    verify=partial(walk, solve_iid),
    verify_batch=partial(walk_with_batched_rng, solve_iid_batch),
)
