"""Rules that test candidates one after another against the target's residual law.

All are one loop: test candidate y with probability R(y) / S(y), where R is what is left of p and S is the law that y
was drawn from; after a rejection R becomes the normalised positive part of R - S. They differ in S:

  one-hot                       S is the point mass at y (the candidate was chosen, not drawn)
  residual                      S is q without the earlier siblings, renormalised (drawn without replacement)
  residual-iid                  S is q throughout, once per draw (SpecInfer's recursive rejection sampling)
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...types import Kind, Law, Topology
from ..dice import Purpose
from ..laws import DenseLaw, normalise
from .base import ANY_TOPOLOGY, EVERY_KIND, Array, Rule, pairs
from .walk import Child, Node, NodeBatch, Step, StepBatch, walk, walk_batch


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
    return Step(None, node.roll.draw(r, Purpose.OWN, node.index))


def solve_one_hot(node: Node) -> Step:
    """Accept y with probability R(y); else take y out of R."""
    r = node.p
    for child in node.children:
        if node.roll.flip(float(r[child.token]), Purpose.ACCEPT, child.node):
            return Step(child, child.token)
        r = residual(r, point(child.token, r.size))
    return emit(node, r)


def point(token: int, vocab: int) -> Array:
    law = np.zeros(vocab)
    law[token] = 1.0
    return law


def solve_residual(node: Node) -> Step:
    """Candidates in draw order, each drawn from q without its elder siblings; chosen ones are point masses."""
    if node.kind == Kind.CHOSEN:
        return solve_one_hot(node)
    r, s = node.p, node.draft() if node.children else node.p
    for child in node.children:
        if node.roll.flip(ratio(r[child.token], s[child.token]), Purpose.ACCEPT, child.node):
            return Step(child, child.token)
        r, s = residual(r, s), residual(s, s[child.token] * point(child.token, s.size))
    return emit(node, r)


def solve_iid(node: Node) -> Step:
    """Independent draws, tested in a random order of the draws.

    Equal draws are merged into one child with a multiplicity. Given the counts, every order of the draws is equally
    likely, so the order is drawn anew here. Testing equal draws in a row instead is biased from three draws on.
    """
    r, q = node.p, node.draft() if node.children else node.p
    left = {child: child.multiplicity for child in node.children}
    for turn in range(sum(left.values())):
        child = _pick(node, left, turn)
        left[child] -= 1
        if node.roll.flip(ratio(r[child.token], q[child.token]), Purpose.ACCEPT, node.index, turn):
            return Step(child, child.token)
        r = residual(r, q)
    return emit(node, r)


def _pick(node: Node, left: dict[Child, int], turn: int) -> Child:
    counts = np.array([float(n) for n in left.values()])
    return list(left)[node.roll.draw(counts / counts.sum(), Purpose.ORDER, node.index, turn)]


def solve_one_hot_batch(node: NodeBatch) -> StepBatch:
    return _reject_in_turn(node, chosen=torch.ones_like(node.depth, dtype=torch.bool))


def solve_residual_batch(node: NodeBatch) -> StepBatch:
    return _reject_in_turn(node, chosen=node.chosen())


def _reject_in_turn(node: NodeBatch, chosen: Tensor) -> StepBatch:
    """The sequential test of `solve_residual` for a batch; `chosen[b]` makes every candidate a point mass."""
    if node.childless():
        return _emit_batch(node, node.p)
    r = node.p.dense()
    s = _draft_rows(node, r)
    slot = torch.full_like(node.index, -1)
    for k in range(node.child.shape[1]):
        present = node.child[:, k] >= 0
        token = node.token[:, k].clamp(min=0)[:, None]
        reach = torch.where(chosen, 1.0, s.gather(1, token)[:, 0])
        passed = _flip_ratio(node, r.gather(1, token)[:, 0], reach, node.child[:, k], 0)
        slot = torch.where((slot < 0) & present & passed, k, slot)
        if node.settled(slot):
            return StepBatch(slot, slot)
        point = torch.zeros_like(r).scatter_(1, token, 1.0)
        law = torch.where(chosen[:, None], point, s)
        r = torch.where(present[:, None], normalise((r - law).clamp(min=0), r), r)
        s = torch.where(present[:, None], normalise(s * (1 - point), s), s)
    return _emit_batch(node, DenseLaw(r), slot)


def solve_iid_batch(node: NodeBatch) -> StepBatch:
    if node.childless():
        return _emit_batch(node, node.p)
    r, q = node.p.dense(), node.draft_law().dense()
    left = node.multiplicity()
    slot = torch.full_like(node.index, -1)
    for turn in range(int(left.sum(dim=1).max())):
        present = left.sum(dim=1) > 0
        weight = left.to(torch.float64)
        weight = normalise(weight, torch.ones_like(weight) / weight.shape[1])
        k = node.dice.draw(DenseLaw(weight), Purpose.ORDER, node.index, turn)[:, None]
        left = left.scatter_add(1, k, -present.to(torch.int64)[:, None])
        token = node.token.gather(1, k).clamp(min=0)
        passed = _flip_ratio(node, r.gather(1, token)[:, 0], q.gather(1, token)[:, 0], node.index, turn)
        slot = torch.where((slot < 0) & present & passed, k[:, 0], slot)
        if node.settled(slot):
            return StepBatch(slot, slot)
        r = torch.where(present[:, None], normalise((r - q).clamp(min=0), r), r)
    return _emit_batch(node, DenseLaw(r), slot)


def _draft_rows(node: NodeBatch, like: Tensor) -> Tensor:
    if node.drafts.laws is None:
        return torch.zeros_like(like)
    return node.draft_law().dense().to(like.dtype)


def _flip_ratio(node: NodeBatch, r: Tensor, s: Tensor, key: Tensor, turn: int) -> Tensor:
    prob = torch.where(s > 0, (r.double() / s.double()).clamp(max=1.0), 0.0)
    return node.dice.flip(prob, Purpose.ACCEPT, key, turn)


def _emit_batch(node: NodeBatch, law: Law, slot: Tensor | None = None) -> StepBatch:
    """The target's own token from what the tests left over; used where no candidate passed."""
    none = torch.full_like(node.index, -1) if slot is None else slot
    return StepBatch(none, node.dice.draw(law, Purpose.OWN, node.index))


ONE_HOT = Rule(
    name="one-hot",
    summary="test candidates one after another with their own probability; exact for any tree",
    exact_for=pairs(EVERY_KIND),
    verify=partial(walk, solve_one_hot),
    verify_batch=partial(walk_batch, solve_one_hot_batch),
)

RESIDUAL = Rule(
    name="residual",
    summary="p/q tests on candidates drawn without replacement; the classical rule on a chain",
    # Merged i.i.d. draws in order of first sight are draws without replacement, of which there may be fewer.
    exact_for=pairs((Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.SAMPLED_IID, Kind.CHOSEN)),
    verify=partial(walk, solve_residual),
    verify_batch=partial(walk_batch, solve_residual_batch),
)

RESIDUAL_IID = Rule(
    name="residual-iid",
    summary="p/q tests on independent draws, the residual updated after each (SpecInfer)",
    exact_for=pairs((Kind.SAMPLED_IID,), ANY_TOPOLOGY) | pairs((Kind.SAMPLED_WITHOUT_REPLACEMENT,), (Topology.CHAIN,)),
    verify=partial(walk, solve_iid),
    verify_batch=partial(walk_batch, solve_iid_batch),
)
