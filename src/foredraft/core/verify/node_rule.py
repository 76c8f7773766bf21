"""A rule of your own from one function about one node; the batched form runs it sequence by sequence.

That is slower than a batched solver and just as exact. `core.verify.exact` shows rules with both forms.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...errors import UsageError
from ...types import Kind, Reason, Topology
from .base import ANY_TOPOLOGY, Rule, one_by_one, pairs
from .tree_walk import Node, Solver, Step, walk


def node_rule(
    name: str,
    solve: Solver,
    *,
    summary: str = "",
    exact_for: tuple[Kind, ...] = (),
    topologies: tuple[Topology, ...] = ANY_TOPOLOGY,
) -> Rule:
    """`solve(node)` returns node.accept(child) or node.emit(token).

    exact_for: kinds of drafts with which the text keeps the target's distribution; none = the rule is lossy, and what
    it accepts is reported as RELAXED. Prove it: `foredraft.check_exact(rule, kind)` enumerates all outcomes.
    """

    def checked(node: Node) -> Step:
        step = solve(node)
        if not isinstance(step, Step):
            raise UsageError(f"rule {name!r} returned {step!r}; return node.accept(child) or node.emit(token)")
        return step if exact_for or step.reason != Reason.STANDARD else replace(step, reason=Reason.RELAXED)

    verify = partial(walk, checked)

    return Rule(name, summary, pairs(exact_for, topologies), verify, one_by_one(verify), lossy=not exact_for)
