"""Trees that start from several tokens of the target's own (Lu et al. 2024).

best-branch, as published: every first-level child is a draw of the target (or one of its most likely tokens) with a
drafted tail below it; all tails are tested, and the branch whose tail is accepted furthest wins. LOSSY: picking the
longest tail changes the distribution of the first token. one-branch is the exact use of the same tree: the target draws
one first token, and only the tail below it is tested.

best-branch:bonus=false ends a round with the last accepted token instead of one more of the target's: the target's
distribution after that token is known by then, and the next first tokens come from it, as published. A first token
passes there if it is among as many top tokens of the target as there are branches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import torch
from torch import Tensor

from ....types import Reason, TreeVerdict, Verdict
from ...host_look import may_look
from ...rng.batched import all_tests, batched_rng
from ...rng.keyed import Purpose
from ...spec import label
from ..base import EVERY_KIND, BatchCase, Rule, TreeCase, one_by_one, pairs
from ..exact.matching import solve_match, solve_match_batch
from ..exact.rejection import ratio, walk_with_batched_rng
from ..longest_path import chosen_batch, deepest, drawn_from, finish, finish_batch, path_to, some_chosen
from ..second_chance import solve_standard, solve_standard_batch
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk


def solve_one_branch(node: Node) -> Step:
    """The first token is the target's own draw, later ones pass the standard test for their kind."""
    return solve_match(node) if node.index < 0 else solve_standard(node)


def verify_one_branch_batch(case: BatchCase) -> Verdict:
    solvers = chain([solve_match_batch], repeat(solve_standard_batch))  # one call per level

    def solve(node: NodeBatch) -> StepBatch:
        return next(solvers)(node)

    return walk_with_batched_rng(solve, case)


def verify_best_branch(case: TreeCase) -> TreeVerdict:
    tree, best = case.tree, -1
    depth = {-1: 0}
    for parent in range(-1, len(tree.token)):
        for node in tree.children(parent) if parent in depth else []:
            token = tree.token[node]
            prob = 1.0 if parent < 0 else ratio(case.target(parent + 1)[token], drawn_from(case, node)[token])
            if case.rng.flip(prob, Purpose.ACCEPT, node):
                depth[node] = depth[parent] + 1
                best = node if depth[node] > depth[best] else best
    return finish(case, best, [Reason.RELAXED] * depth[best], tested=True)


def verify_best_branch_batch(case: BatchCase) -> Verdict:
    """Unlike a walk this reads every branch, row by row, which is its cost."""
    case = replace(case, rng=batched_rng(case.rng, case.drafts.width))
    drafts, table = case.drafts, case.drafts.child_table()
    # One spare column takes what absent children would write.
    alive = torch.zeros((drafts.batch, drafts.width + 2), dtype=torch.bool, device=drafts.token.device)
    alive[:, 0] = True
    inner = (table >= 0).any(dim=2)  # rows with children; the host passes the leaves by
    some = inner.any(dim=0).nonzero()[:, 0].tolist() if may_look(inner) else range(drafts.width + 1)
    for row in some:
        child, live = table[:, row], alive[:, row] & inner[:, row]
        if may_look(live) and not bool(live.any()):
            continue
        passed = live[:, None] & (child >= 0)  # first tokens are the target's own and pass
        if row > 0:
            passed = all_tests(case.rng, _ratios(case, row, child) * live[:, None], child)
        alive.scatter_(1, torch.where(child >= 0, child + 1, drafts.width + 1), passed)
    reason = torch.full((drafts.batch, drafts.levels), int(Reason.RELAXED), device=drafts.token.device)
    return finish_batch(case, deepest(case, alive[:, :-1]), reason, tested=True)


def _ratios(case: BatchCase, row: int, child: Tensor) -> Tensor:
    """[B, C] float64 min(1, p / q) of the children of one row."""
    drafts, rows, node = case.drafts, torch.full_like(case.drafts.length, row), child.clamp(min=0)
    token = drafts.token.gather(1, node)
    p = case.target.at(rows).dense().gather(1, token).double()
    if drafts.distributions is None:
        return p
    q = drafts.distributions.at(rows).dense().gather(1, token).double()
    if some_chosen(case):
        q = torch.where(chosen_batch(case, node), 1.0, q)
    return (p / q).clamp_(max=1.0).masked_fill_(q <= 0, 0.0)


ONE_BRANCH = Rule(
    name="one-branch",
    summary="the target draws the first token, the tail below it passes p/q tests",
    exact_for=pairs(EVERY_KIND),
    verify=partial(walk, solve_one_branch),
    verify_batch=verify_one_branch_batch,
)


def verify_without_bonus(case: TreeCase) -> TreeVerdict:
    """best-branch whose last accepted token takes the place of the bonus token."""
    tree, best, depth = case.tree, -1, {-1: 0}
    for parent in range(-1, len(tree.token)):
        for node in tree.children(parent) if parent in depth else []:
            if case.rng.flip(_chance(case, parent, node), Purpose.ACCEPT, node):
                depth[node] = depth[parent] + 1
                best = node if depth[node] > depth[best] else best
    if best < 0:
        return finish(case, best, [], tested=False)
    return TreeVerdict(path_to(tree, best)[:-1], tree.token[best], [Reason.RELAXED] * depth[best])


def _chance(case: TreeCase, parent: int, node: int) -> float:
    token = case.tree.token[node]
    if parent >= 0:
        return ratio(case.target(parent + 1)[token], drawn_from(case, node)[token])
    p = (case.temperature_one or case.target)(0)
    return float((p > p[token]).sum() < len(case.tree.children(-1)))


def best_branch(bonus: bool = True) -> Rule:
    """Of several branches begun by the target the one accepted furthest wins, as published (lossy)."""
    return Rule(
        name=label("best-branch", bonus=(bonus, True)),
        summary="of several branches begun by the target the one accepted furthest wins, as published (lossy)",
        exact_for=frozenset(),
        verify=verify_best_branch if bonus else verify_without_bonus,
        verify_batch=verify_best_branch_batch if bonus else one_by_one(verify_without_bonus),
        lossy=True,
        reads_ahead=True,
        needs_temperature_one=not bonus,
    )
