"""Sequential p/q tests with a lowered threshold. Lossy.

lenience (Leviathan et al. 2023, appendix): test p / (l q), residual Nrm([p - l q]+); guarantees out <= p / l.
cactus (2026): test g / q with g = p + sqrt(2 d p (1 - p)), residual Nrm([p - q]+). On trees both replace p by what is
left of it, as the residual rule does. A test is made in two parts, so that the reasons tell which tokens only the
lowered threshold let through.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ....errors import UsageError
from ....types import Kind, Reason
from ...rng.keyed import Purpose
from ...spec import label
from ..base import Rule
from ..exact.rejection import Relax, emit, point, ratio, reject_one_by_one, residual, walk_with_batched_rng
from ..tree_walk import Child, Node, NodeBatch, Step, StepBatch, walk


def solve_relaxed(relax: Relax, node: Node) -> Step:
    """`solve_residual` with the lowered threshold."""
    if not node.children:
        return emit(node, node.p)
    chosen = node.kind == Kind.CHOSEN
    r, q = node.p, node.p if chosen else node.draft()
    for child in node.children:
        s = point(child.token, r.size) if chosen else q
        strict = ratio(r[child.token], s[child.token])
        wide = ratio(relax.boost(float(r[child.token])), relax.lenience * s[child.token])
        step = two_part_test(node, child, strict, wide)
        if step is not None:
            return step
        r, q = residual(r, relax.lenience * s), residual(q, q[child.token] * point(child.token, q.size))
    return emit(node, r)


def two_part_test(node: Node, child: Child, strict: float, wide: float) -> Step | None:
    """Accept with probability `wide`, as STANDARD with the part `strict` of it."""
    if node.rng.flip(strict, Purpose.ACCEPT, child.node):
        return Step(child, child.token)
    if node.rng.flip((wide - strict) / (1 - strict) if strict < 1 else 0.0, Purpose.ACCEPT, child.node, 1):
        return Step(child, child.token, Reason.RELAXED)
    return None


def solve_relaxed_batch(relax: Relax, node: NodeBatch) -> StepBatch:
    return reject_one_by_one(node, relax)


def _rule(name: str, summary: str, relax: Relax) -> Rule:
    return Rule(
        name=name,
        summary=summary,
        exact_for=frozenset(),
        verify=partial(walk, partial(solve_relaxed, relax)),
        verify_batch=partial(walk_with_batched_rng, partial(solve_relaxed_batch, relax)),
        lossy=True,
    )


def lenience(factor: float = 0.8) -> Rule:
    """factor: l in (0, 1]; 1 is the exact rule."""
    if not 0 < factor <= 1:
        raise UsageError("lenience: factor lies in (0, 1]")
    name = label("lenience", factor=(factor, 0.8))
    return _rule(name, "p/q tests as if the draft had been less sure (lossy)", Relax(lenience=factor))


def cactus(delta: float = 1.0) -> Rule:
    """delta: d >= 0 of g; 0 is the exact rule."""
    if not delta >= 0:
        raise UsageError("cactus: delta is 0 or positive")

    def boost(r: Any) -> Any:
        return r + (2 * delta * r * abs(1 - r)) ** 0.5  # rounding may push r above 1

    name = label("cactus", delta=(delta, 1.0))
    return _rule(name, "p/q tests with p raised by its own standard deviation (lossy)", Relax(boost=boost))
