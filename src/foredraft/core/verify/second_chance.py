"""Second-chance acceptance: the form of lossy rules that keep tokens which the exact test rejects (judges, gates).

At a node the standard rule for the kind of its children decides first. Only where it would emit a token of its own, the
walk goes down to the child with the best score instead, if any child passes. Where no child passes this is the exact
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from ...types import Distribution, Distributions, Kind, Reason, TreeVerdict, Verdict
from ..host_look import may_look
from .base import Array, BatchCase, Rule, TreeCase
from .exact.rejection import solve_residual, solve_residual_batch, walk_with_batched_rng
from .exact.top_then_sampled import solve_top_then_sampled, solve_top_then_sampled_batch
from .tree_walk import BatchSolver, Node, NodeBatch, Solver, Step, StepBatch, walk

NO = -float("inf")  # the score of a child that does not pass
WITHHELD = -1e300  # in the readable form: it would pass, but whoever scores abstains
ABSTAINING = 2.0  # scores lie in [0, 1]; less by this much they are those of children about which a head abstains
Score = Callable[[TreeCase, Node], Sequence[float]]  # of the children of a node, in the readable form


@dataclass(frozen=True, slots=True)
class SecondChance:
    """Scores of the children of a node, `NO` where one does not pass; in both forms.

    For scores that are costly, so computed at visited nodes only.
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
    scores: Callable[[BatchCase], Tensor]  # [B, N], `NO` = never passes; reads neither rng nor greedy distributions
    threshold: float | Tensor = NO  # a node passes where its score is higher; [B] = one for each sequence
    shared_key: Hashable = None  # equal for second chances that differ in nothing but their thresholds
    reason: Reason = Reason.RELAXED
    abstains: bool = False  # whether scores may be those of children about which a head abstains

    @property
    def off(self) -> bool:
        """Whether no score passes."""
        return isinstance(self.threshold, float) and self.threshold == float("inf")

    def passing_scores(self, case: BatchCase) -> Tensor:
        """[B, N] scores, `NO` where a node does not pass."""
        return above(self.scores(case), self.limit(case))

    def limit(self, case: BatchCase) -> float | Tensor:
        """The threshold, where the drafts are."""
        found = self.threshold
        return found.to(case.drafts.token.device) if isinstance(found, Tensor) else found

    def scorer(self, case: BatchCase) -> Callable[[NodeBatch], Tensor]:
        """Scores of a node's children: NO where one does not pass, the least number where the head abstains."""
        table = cache(lambda: self._table(case))  # not computed where the standard test accepts throughout
        return lambda node: table().gather(1, node.child.clamp(min=0))

    def _table(self, case: BatchCase) -> Tensor:
        scores, threshold = self.scores(case), self.limit(case)
        passing = above(scores, threshold)
        if not self.abstains:
            return passing
        return torch.where(withheld(scores, threshold), torch.finfo(scores.dtype).min, passing)


def above(scores: Tensor, threshold: float | Tensor) -> Tensor:
    """[B, N] scores, `NO` where one is not above the threshold, of all or of each sequence [B]."""
    if isinstance(threshold, Tensor):
        threshold = threshold.reshape(-1, 1).to(scores.dtype)
    return torch.where(scores > threshold, scores, NO)


def withheld(scores: Tensor, threshold: float | Tensor) -> Tensor:
    """[B, N] bool: nodes that would pass, but about which the head abstains; none where everything passes."""
    if isinstance(threshold, Tensor):
        threshold = threshold.reshape(-1, 1).to(scores.dtype)
    return (scores + ABSTAINING > threshold) & (scores <= threshold) & (scores < -1)


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
    if drafts.distributions is None or (may_look(top) and not bool(top.any())):
        return step
    other = solve_top_then_sampled_batch(node)
    return StepBatch(torch.where(top, other.slot, step.slot), torch.where(top, other.token, step.token))


def verify_tree(standard: Solver, second_chance: SecondChance | BatchedSecondChance, case: TreeCase) -> TreeVerdict:
    """The walk with second chances, over one tree."""

    def solve(node: Node) -> Step:
        step = standard(node)
        if step.child is not None or not node.children:
            return step
        scores = second_chance.score(case, node)
        best = max(range(len(scores)), key=lambda k: scores[k])
        if scores[best] <= WITHHELD:
            return step if scores[best] == NO else Step(None, step.token, Reason.ABSTAINED)
        return Step(node.children[best], node.children[best].token, second_chance.reason)

    return walk(solve, case)


def verify_batch(standard: BatchSolver, second_chance: SecondChance | BatchedSecondChance, case: BatchCase) -> Verdict:
    scorer = second_chance.scorer(case)

    def solve(node: NodeBatch) -> StepBatch:
        step = standard(node)
        if node.childless() or node.settled(step.slot):
            return step
        scores = torch.where(node.child >= 0, scorer(node), NO)
        best, slot = scores.max(dim=1)
        lowest = torch.finfo(scores.dtype).min
        over = (step.slot < 0) & (best > lowest)
        ended = torch.where((step.slot < 0) & (best == lowest), int(Reason.ABSTAINED), int(Reason.STANDARD))
        reason = torch.where(over, int(second_chance.reason), ended)
        return StepBatch(torch.where(over, slot, step.slot), step.token, reason)

    return walk_with_batched_rng(solve, case)


def with_second_chance(
    name: str,
    summary: str,
    second_chance: SecondChance | BatchedSecondChance,
    standard: tuple[Solver, BatchSolver] = (solve_standard, solve_standard_batch),
    needs_hidden: bool = False,
    needs_temperature_one: bool = False,
    needs_distributions: bool = False,
) -> Rule:
    """A lossy rule: the standard test, then the second chance."""
    return Rule(
        name=name,
        summary=summary,
        exact_for=frozenset(),
        verify=lambda case: verify_tree(standard[0], second_chance, case),
        verify_batch=lambda case: verify_batch(standard[1], second_chance, case),
        lossy=True,
        needs_hidden=needs_hidden,
        needs_temperature_one=needs_temperature_one,
        needs_distributions=needs_distributions,
        second_chance=second_chance if isinstance(second_chance, BatchedSecondChance) else None,
    )


def temperature_one_row(case: TreeCase, row: int) -> Array:
    """The target's distribution of a row for weighing alternatives: at temperature 1 where the request is greedy."""
    return case.target(row) if case.temperature_one is None else case.temperature_one(row)


def temperature_one_row_batch(case: BatchCase, row: Tensor) -> Distribution:
    return temperature_one_rows(case).at(row)


def temperature_one_rows(case: BatchCase) -> Distributions:
    return case.target if case.temperature_one is None else case.temperature_one
