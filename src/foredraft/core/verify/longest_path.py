"""Verdicts of rules that look at whole trees instead of walking: a set of passing nodes, and the deepest of them wins.

Both forms. Nodes are visited in index order, so parents come first. Where the winner's next token had been drafted and
failed its p/q test, the token comes from what that test left of p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import DraftTree, Kind, Reason, TreeVerdict, Verdict
from ..distributions.tensors import DenseDistribution, pick_rows
from ..host_look import may_look
from ..rng.keyed import Purpose
from .base import Array, BatchCase, TreeCase
from .exact.rejection import point, residual


def path_to(tree: DraftTree, node: int) -> list[int]:
    """Nodes from the root's child down to `node`; -1 = the root, no nodes."""
    return [] if node < 0 else [*path_to(tree, tree.parent[node]), node]


def drawn_from(case: TreeCase, node: int) -> Array:
    """The distribution that a node was drawn from: q of its parent's row, or a point mass if it was chosen."""
    row = case.tree.parent[node] + 1
    if case.tree.kind[node] == Kind.CHOSEN:
        return point(case.tree.token[node], case.target(row).size)
    return case.draft(row)


def finish(case: TreeCase, node: int, reasons: list[Reason], tested: bool) -> TreeVerdict:
    """The verdict that ends at `node`. tested: a drafted next token failed a p/q test."""
    p, missed = case.target(node + 1), case.tree.children(node)
    distribution = residual(p, drawn_from(case, missed[0])) if missed and tested else p
    token = case.rng.draw(distribution, Purpose.OWN, node)
    return TreeVerdict(path_to(case.tree, node), token, [*reasons, Reason.CORRECTED if missed else Reason.BONUS])


def ratio_batch(case: BatchCase, row: Tensor, node: Tensor) -> Tensor:
    """[B] min(1, p / q) of one node per sequence, `row` [B] being its parent's row."""
    token, distributions = case.drafts.token.gather(1, node[:, None])[:, 0], case.drafts.distributions
    p = case.target.at(row).prob(token).double()
    if distributions is None:
        return p
    q = distributions.at(row).prob(token).double()
    if some_chosen(case):
        q = torch.where(chosen_batch(case, node[:, None])[:, 0], 1.0, q)
    return (p / q).clamp_(max=1.0).masked_fill_(q <= 0, 0.0)


def some_chosen(case: BatchCase) -> bool:
    """Whether any node may have been chosen, as far as the host knows."""
    return case.drafts.node_kind is not None or case.drafts.kind == Kind.CHOSEN


def chosen_batch(case: BatchCase, node: Tensor) -> Tensor:
    """[B, C] bool: the nodes were chosen, not drawn."""
    if case.drafts.node_kind is None:
        return torch.full_like(node, case.drafts.kind == Kind.CHOSEN, dtype=torch.bool)
    return case.drafts.node_kind.gather(1, node) == int(Kind.CHOSEN)


def deepest(case: BatchCase, alive: Tensor) -> Tensor:
    """[B] row of the first deepest passing node, by parent and then by rank; alive [B, N + 1] by row, root included."""
    drafts = case.drafts
    depth = torch.where(alive, torch.nn.functional.pad(drafts.depth, (1, 0)), -1)
    place = torch.nn.functional.pad((drafts.parent + 1) * drafts.branching + drafts.order, (1, 0))
    best = depth == depth.amax(dim=1, keepdim=True)
    return torch.where(best, place, (drafts.width + 1) * drafts.branching).argmin(dim=1)


def finish_batch(case: BatchCase, row: Tensor, reason: Tensor, tested: bool) -> Verdict:
    """The verdicts that end at `row` [B]; reason [B, D] of the accepted nodes by level."""
    drafts, who = case.drafts, torch.arange(row.shape[0], device=row.device)
    accepted = torch.nn.functional.pad(drafts.depth, (1, 0)).gather(1, row[:, None])[:, 0]
    missed = drafts.child_table()[who, row, 0] if drafts.levels else torch.full_like(row, -1)
    distribution = DenseDistribution(_left_of(case, row, missed)) if tested else case.target.at(row)
    token = case.rng.draw(distribution, Purpose.OWN, row - 1)
    column = torch.arange(drafts.levels + 1, device=row.device)[None, :]
    end = torch.where(missed >= 0, int(Reason.CORRECTED), int(Reason.BONUS))[:, None]
    inner = torch.where(column < accepted[:, None], torch.nn.functional.pad(reason, (0, 1)), 0)
    return Verdict(
        _path_batch(case, row, accepted), accepted, token, torch.where(column == accepted[:, None], end, inner)
    )


def _left_of(case: BatchCase, row: Tensor, missed: Tensor) -> Tensor:
    """[B, V] [p - s]+ where s is what the failed node `missed` was drawn from; p where nothing failed (-1)."""
    p, at = case.target.at(row).dense(), missed.clamp(min=0)
    if case.drafts.width == 0:
        return p
    token, failed = case.drafts.token.gather(1, at[:, None]), (missed >= 0)[:, None]
    chosen = failed if case.drafts.distributions is None else failed & chosen_batch(case, at[:, None])
    rest = p.scatter(1, token, p.gather(1, token) * ~chosen)
    if case.drafts.distributions is not None:
        q, drawn = case.drafts.distributions.at(row).dense().to(p.dtype), (failed & ~chosen).to(p.dtype)
        rest = torch.relu_(rest.addcmul_(q, drawn, value=-1))
    return pick_rows(rest.sum(dim=1, keepdim=True) > 0, rest, p)


def _path_batch(case: BatchCase, row: Tensor, accepted: Tensor) -> Tensor:
    """[B, D] nodes from the root's child down to each row, -1 = padding."""
    drafts, who = case.drafts, torch.arange(row.shape[0], device=row.device)
    path = torch.full((drafts.batch, drafts.levels), -1, dtype=torch.int64, device=row.device)
    node = row - 1
    for back in range(int(accepted.max()) if may_look(row) else drafts.levels):
        place, on = (accepted - 1 - back).clamp(min=0), back < accepted
        path[who, place] = torch.where(on, node, path[who, place])
        node = torch.where(on, drafts.parent.gather(1, node.clamp(min=0)[:, None])[:, 0], node)
    return path
