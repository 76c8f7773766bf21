"""The walk down a draft tree: at each node a solver either moves to a child or emits a token and stops.

A node rule is written twice, as `solve` (one node, plain Python) and `solve_batch` (one node of every sequence); the
two walks below make whole rules of them. Distributions are looked up at visited rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...errors import UsageError
from ...types import Distribution, DraftBatch, Kind, Reason, TreeVerdict, Verdict
from ..host_look import may_look
from ..rng.keyed import Rng
from .base import Array, BatchCase, PlainRng, TreeCase


@dataclass(frozen=True, slots=True)
class Child:
    """One candidate at a node, in draw order."""

    node: int
    token: int
    multiplicity: int = 1


@dataclass(frozen=True, slots=True)
class Node:
    """Everything a solver may look at."""

    p: Array
    children: list[Child]
    kind: Kind
    depth: int  # of the children
    index: int  # the node itself, -1 = root
    draft: Callable[[], Array]  # q; raises where the drafter gave no distribution
    rng: PlainRng

    def accept(self, child: Child, reason: Reason = Reason.STANDARD) -> Step:
        """Go down to a child."""
        if not isinstance(child, Child):
            raise UsageError(f"node.accept was given {child!r}; it takes one of node.children")
        return Step(child, child.token, reason)

    def emit(self, token: int) -> Step:
        """Write a token of the target's own and end the round; goes down instead if a child carries the token."""
        same = [child for child in self.children if child.token == token]
        return Step(same[0] if same else None, token)


@dataclass(frozen=True, slots=True)
class Step:
    """A solver's answer: go to `child`, or emit `token` if child is None."""

    child: Child | None
    token: int
    reason: Reason = Reason.STANDARD


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """One node of every sequence. C is the branching of the batch."""

    p: Distribution
    child: Tensor  # [B, C] int64 nodes in draw order, -1 = none
    token: Tensor  # [B, C] int64 their tokens, -1 = none
    depth: Tensor  # [B] int64 of the children
    index: Tensor  # [B] int64 the nodes themselves
    drafts: DraftBatch
    rng: Rng
    last: bool = False  # below the deepest level: no candidates, and no draft distributions either

    def childless(self) -> bool:
        """No sequence has a candidate here. Above the last level a device says no rather than synchronise."""
        return self.last or (may_look(self.child) and not bool((self.child >= 0).any()))

    def settled(self, slot: Tensor) -> bool:
        """Every sequence has its child, so the rest of the tests can be skipped; on the host only, as above."""
        return may_look(slot) and bool((slot >= 0).all())

    def draft_distribution(self) -> Distribution:
        if self.drafts.distributions is None:
            raise ValueError("this rule needs the draft's distributions, and the drafter gave none")
        return self.drafts.distributions.at(self.index + 1)

    def chosen(self) -> Tensor:
        """[B] bool: the children of this node were chosen, not sampled."""
        if self.drafts.node_kind is None:
            return torch.full_like(self.depth, self.drafts.kind == Kind.CHOSEN, dtype=torch.bool)
        first = self.child[:, 0].clamp(min=0)[:, None]
        return self.drafts.node_kind.gather(1, first)[:, 0] == int(Kind.CHOSEN)

    def multiplicity(self) -> Tensor:
        """[B, C] int64, 0 where there is no child."""
        present = (self.child >= 0).to(torch.int64)
        if self.drafts.multiplicity is None:
            return present
        return present * self.drafts.multiplicity.gather(1, self.child.clamp(min=0))


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Solvers' answers for a batch."""

    slot: Tensor  # [B] int64 index into the children, -1 = emit `token`
    token: Tensor  # [B] int64
    reason: Tensor | None = None  # [B] int64 Reason of an accepted child; None = STANDARD


Solver = Callable[[Node], Step]
BatchSolver = Callable[[NodeBatch], StepBatch]


def walk(solve: Solver, case: TreeCase) -> TreeVerdict:
    """Apply a node rule from the root downwards."""
    tree, node = case.tree, -1
    path: list[int] = []
    reasons: list[Reason] = []
    while True:
        children = [Child(i, tree.token[i], tree.multiplicity[i]) for i in tree.children(node)]
        kind = tree.kind[children[0].node] if children else Kind.CHOSEN
        row = node + 1
        step = solve(Node(case.target(row), children, kind, len(path) + 1, node, partial(case.draft, row), case.rng))
        if step.child is None:
            own = Reason.CORRECTED if children else Reason.BONUS
            reasons.append(step.reason if step.reason is Reason.ABSTAINED else own)
            return TreeVerdict(path, step.token, reasons)
        node = step.child.node
        path.append(node)
        reasons.append(step.reason)


def walk_batch(solve: BatchSolver, case: BatchCase) -> Verdict:
    """The same walk for a batch, level by level; sequences that have stopped idle along."""
    drafts = case.drafts
    table = drafts.child_table()
    tokens = torch.nn.functional.pad(drafts.token, (1, 0), value=-1)  # by row, so that the absent child -1 finds -1
    state = _Walk(drafts.batch, drafts.levels, drafts.token.device)
    for level in range(drafts.levels + 1):
        row = state.node + 1
        child = table[state.who, row]  # [B, C]; all absent below the deepest level
        depth, last = torch.full_like(row, level + 1), level == drafts.levels
        p, token = case.target.at(row), tokens.gather(1, child + 1)
        here = NodeBatch(p, child, token, depth, state.node, drafts, case.rng, last)
        state.take(level, here, solve(here))
        # On a device the check would be a synchronisation; there the loop simply runs to its fixed end.
        if may_look(drafts.token) and not bool(state.active.any()):
            break
    return state.verdict(table)


class _Walk:
    """Where each sequence stands, and what it has collected."""

    def __init__(self, batch: int, levels: int, device: torch.device) -> None:
        self.who = torch.arange(batch, device=device)
        self.node = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.active = torch.ones(batch, dtype=torch.bool, device=device)
        self.path = torch.full((batch, levels), -1, dtype=torch.int64, device=device)
        self.reason = torch.zeros((batch, levels + 1), dtype=torch.int64, device=device)
        self.emitted = torch.zeros_like(self.node)

    def take(self, level: int, here: NodeBatch, step: StepBatch) -> None:
        """Follow the solvers' answers by one level. A token counts only if its sequence stops with it."""
        self.emitted = torch.where(self.active, step.token, self.emitted)
        before, self.active = self.active, self.active & (step.slot >= 0)
        target = here.child.gather(1, step.slot.clamp(min=0)[:, None])[:, 0]
        self.node = torch.where(self.active, target, self.node)
        if level < self.path.shape[1]:
            self.path[:, level] = torch.where(self.active, target, -1)
        if step.reason is not None:
            ended = before & (step.reason == int(Reason.ABSTAINED))
            self.reason[:, level] = step.reason * (self.active | ended)

    def verdict(self, table: Tensor) -> Verdict:
        """The whole walk; `table` [B, N + 1, C] tells whether the last node had candidates to correct."""
        accepted = (self.path >= 0).sum(dim=1)
        refused = (table[self.who, self.node + 1] >= 0).any(dim=1)
        end = torch.where(refused, int(Reason.CORRECTED), int(Reason.BONUS))[:, None]
        said = self.reason.gather(1, accepted[:, None])
        end = torch.where(said == int(Reason.ABSTAINED), said, end)
        return Verdict(self.path, accepted, self.emitted, self.reason.scatter_(1, accepted[:, None], end))
