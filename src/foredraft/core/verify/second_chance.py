"""The standard test or a second opinion: the shape of every rule that lets good tokens pass (judges, gates).

At a node the standard rule for the kind of its children decides first. Only where it would emit a token of its own, the
walk goes down to the child with the best opinion instead, if any child passes. Without opinions this is the exact rule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from ...types import Distribution, Distributions, Kind, Reason, TreeVerdict, Verdict
from .base import Array, BatchCase, Rule, TreeCase
from .exact.rejection import solve_residual, solve_residual_batch, walk_ahead
from .exact.top_then_sampled import solve_top_then_sampled, solve_top_then_sampled_batch
from .tree_walk import BatchSolver, Node, NodeBatch, Solver, Step, StepBatch, walk

NO = -float("inf")  # the opinion of a child that does not pass
Score = Callable[[TreeCase, Node], Sequence[float]]  # of the children of a node, in the readable form


@dataclass(frozen=True, slots=True)
class SecondChance:
    """Scores of the children of a node, `NO` where one does not pass; in both forms.

    For opinions that are dear to form, so formed at visited nodes only.
    """

    score: Score
    score_batch: Callable[[BatchCase, NodeBatch], Tensor]  # [B, C]
    reason: Reason = Reason.RELAXED

    def scorer(self, case: BatchCase) -> Callable[[NodeBatch], Tensor]:
        return partial(self.score_batch, case)


@dataclass(frozen=True, slots=True)
class BatchedSecondChance:
    """Scores of all drafted nodes at once: a few operations, whatever the walk visits.

    Rules carry it, so that whoever knows the standard verdict can ask for the table alone.
    """

    score: Score
    scores: Callable[
        [BatchCase], Tensor
    ]  # [B, N], `NO` where none would do; looks at neither rng nor greedy distributions
    bar: float | Tensor = NO  # a node passes where its score is higher; [B] = one for each sequence
    kin: Hashable = None  # opinions that differ in nothing but their bars say the same here
    reason: Reason = Reason.RELAXED

    def ahead(self, case: BatchCase) -> Tensor:
        """[B, N] scores, `NO` where a node does not pass."""
        bar = self.bar.to(case.drafts.token.device) if isinstance(self.bar, Tensor) else self.bar
        return above(self.scores(case), bar)

    def scorer(self, case: BatchCase) -> Callable[[NodeBatch], Tensor]:
        table = cache(lambda: self.ahead(case))  # a walk that the standard test settles never asks
        return lambda node: table().gather(1, node.child.clamp(min=0))


def above(scores: Tensor, bar: float | Tensor) -> Tensor:
    """[B, N] scores, `NO` where one is not above the bar, of all or of each sequence [B]."""
    return torch.where(scores > (bar.reshape(-1, 1).to(scores.dtype) if isinstance(bar, Tensor) else bar), scores, NO)


def solve_standard(node: Node) -> Step:
    """The exact test for the kind of the node's children."""
    return solve_top_then_sampled(node) if node.kind == Kind.TOP_THEN_SAMPLED else solve_residual(node)


def solve_standard_batch(node: NodeBatch) -> StepBatch:
    drafts = node.drafts
    if drafts.node_kind is None:
        top_kind = drafts.kind == Kind.TOP_THEN_SAMPLED
        return solve_top_then_sampled_batch(node) if top_kind else solve_residual_batch(node)
    first = node.child[:, 0].clamp(min=0)[:, None]
    top = drafts.node_kind.gather(1, first)[:, 0] == int(Kind.TOP_THEN_SAMPLED)
    step = solve_residual_batch(node)
    if drafts.distributions is None or (top.device.type == "cpu" and not bool(top.any())):
        return step
    other = solve_top_then_sampled_batch(node)
    return StepBatch(torch.where(top, other.slot, step.slot), torch.where(top, other.token, step.token))


def ask(standard: Solver, opinion: SecondChance | BatchedSecondChance, case: TreeCase) -> TreeVerdict:
    """The walk with a second opinion, over one tree."""

    def solve(node: Node) -> Step:
        step = standard(node)
        if step.child is not None or not node.children:
            return step
        scores = opinion.score(case, node)
        best = max(range(len(scores)), key=lambda k: scores[k])
        if scores[best] == NO:
            return step
        return Step(node.children[best], node.children[best].token, opinion.reason)

    return walk(solve, case)


def ask_batch(standard: BatchSolver, opinion: SecondChance | BatchedSecondChance, case: BatchCase) -> Verdict:
    scorer = opinion.scorer(case)

    def solve(node: NodeBatch) -> StepBatch:
        step = standard(node)
        if node.childless() or node.settled(step.slot):
            return step
        scores = torch.where(node.child >= 0, scorer(node), NO)
        best, slot = scores.max(dim=1)
        over = (step.slot < 0) & (best > NO)
        reason = torch.where(over, int(opinion.reason), int(Reason.STANDARD))
        return StepBatch(torch.where(over, slot, step.slot), step.token, reason)

    return walk_ahead(solve, case)


def with_second_chance(
    name: str,
    summary: str,
    opinion: SecondChance | BatchedSecondChance,
    standard: tuple[Solver, BatchSolver] = (solve_standard, solve_standard_batch),
    needs_hidden: bool = False,
    needs_temperature_one: bool = False,
    needs_distributions: bool = False,
) -> Rule:
    """A lossy rule: `standard` or the opinion."""
    return Rule(
        name=name,
        summary=summary,
        exact_for=frozenset(),
        verify=lambda case: ask(standard[0], opinion, case),
        verify_batch=lambda case: ask_batch(standard[1], opinion, case),
        lossy=True,
        needs_hidden=needs_hidden,
        needs_temperature_one=needs_temperature_one,
        needs_distributions=needs_distributions,
        opinion=opinion if isinstance(opinion, BatchedSecondChance) else None,
    )


def soft_distribution(case: TreeCase, row: int) -> Array:
    """The target's distribution of a row with its alternatives, also at temperature 0 where the caller gave them."""
    return case.target(row) if case.soft is None else case.soft(row)


def soft_distribution_batch(case: BatchCase, row: Tensor) -> Distribution:
    return soft_distributions(case).at(row)


def soft_distributions(case: BatchCase) -> Distributions:
    return case.target if case.soft is None else case.soft
