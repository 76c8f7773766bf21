"""Which drafted tokens share a batch's verification budget (TETRIS, Wu et al. 2025). Pure; knows no scheduler.

Every drafted token has an estimate of the chance that it will be committed; the `capacity` best ones are verified. The
estimates never rise along a path, so the best ones are prefixes of the chains, or trees without their lower parts.

What may the estimate of a token look at? A token that is dropped is replaced by a fresh draw of the target, so at
temperature > 0 its fate must not depend on what it is (DESIGN invariant 5). The published score does: it is the product
of the tokens' own draft probabilities. The shifted score takes the largest probability of the token's distribution in
place of its own and is exact. Trees are cut by value, which looks at tokens; what is left of them counts as CHOSEN.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ...types import DraftBatch, Kind
from .editing import keep

NEVER = -float("inf")


# --- scores of chains -----------------------------------------------------------------------------------------------


def own_scores(log_q: Tensor) -> Tensor:
    """[B, N] the published score, log prod_{t <= j} q(x_t). BIASED for sampling targets; exact for greedy ones."""
    return log_q.cumsum(dim=1)


def shifted_scores(log_q: Tensor, log_top: Tensor) -> Tensor:
    """[B, N] log of prod_{t < j} q(x_t) * max_v q_j(v): blind to x_j itself. Exact for every target."""
    return log_q.cumsum(dim=1) - log_q + log_top


def masked(score: Tensor, length: Tensor, ends: Tensor | None = None) -> Tensor:
    """The score with padding, and what follows an end-of-text token (ends [B, N]), excluded."""
    column = torch.arange(score.shape[1], device=score.device)[None, :]
    out = column >= length[:, None]
    if ends is not None:
        out = out | ((ends.cumsum(dim=1) - ends.to(torch.int64)) > 0)
    return score.masked_fill(out, NEVER)


def tetris(
    log_q: Tensor,
    log_top: Tensor | None,
    length: Tensor,
    capacity: int,
    sampling: bool = True,
    ends: Tensor | None = None,
) -> Tensor:
    """[B] int64 chain lengths, at most `capacity` in all, for a batch with drafts of probability exp(log_q) [B, N].

    sampling: some target samples, so the shifted score is used and needs log_top [B, N], log max q of every position.
    """
    if sampling and log_top is None:
        raise ValueError("sampling targets need log_top: the published score looks at the tokens that it drops")
    score = own_scores(log_q) if log_top is None or not sampling else shifted_scores(log_q, log_top)
    return best_lengths(masked(score, length, ends), capacity)


# --- the choice, for chains -----------------------------------------------------------------------------------------


def best_lengths(score: Tensor, capacity: int) -> Tensor:
    """[B] prefix lengths that hold the `capacity` largest scores [B, N]. Scores must not rise along a row.

    Equal scores go by depth and then by request, so that no token is taken without the one before it.
    """
    batch, width = score.shape
    flat = score.t().reshape(-1)  # depth first
    best = flat.sort(descending=True, stable=True).indices[: max(0, capacity)]
    taken = torch.zeros_like(flat, dtype=torch.int64).scatter_(0, best, 1) * (flat > NEVER)
    return taken.reshape(width, batch).sum(dim=0)


def best_lengths_by_heap(score: Seq[Seq[float]], capacity: int) -> list[int]:
    """The same on host lists, one token at a time: the readable reference."""
    lengths = [0] * len(score)
    heap = [(-row[0], 1, i) for i, row in enumerate(score) if row and row[0] > NEVER]
    heapq.heapify(heap)
    for _ in range(capacity):
        if not heap:
            break
        _, depth, i = heapq.heappop(heap)
        lengths[i] = depth
        if depth < len(score[i]) and score[i][depth] > NEVER:
            heapq.heappush(heap, (-score[i][depth], depth + 1, i))
    return lengths


# --- the choice, for trees ------------------------------------------------------------------------------------------


def best_nodes(drafts: DraftBatch, capacity: int) -> Tensor:
    """[B, N] bool: the `capacity` nodes of largest value over all sequences, with their ancestors.

    A node counts for no more than its ancestors do. Equal values go by depth, then by sequence, then by node.
    """
    value = _falling(drafts)
    flat, depth = value.reshape(-1), drafts.depth.reshape(-1)
    shallow = depth.sort(stable=True).indices
    order = shallow[flat[shallow].sort(descending=True, stable=True).indices]
    taken = torch.zeros_like(flat, dtype=torch.bool)
    taken[order[: max(0, capacity)]] = True
    return (taken & (flat > NEVER)).reshape(value.shape)


def _falling(drafts: DraftBatch) -> Tensor:
    """[B, N] values cut down to those of the ancestors; padding never counts."""
    if drafts.value is None:
        raise ValueError("trees are chosen by value, and the drafter gave none")
    value = drafts.value.masked_fill(~drafts.used(), NEVER)
    for _ in range(drafts.levels - 1):
        above = value.gather(1, drafts.parent.clamp(min=0))
        value = torch.where(drafts.parent >= 0, torch.minimum(value, above), value)
    return value


def best_nodes_by_heap(trees: Seq[tuple[Seq[int], Seq[float]]], capacity: int) -> list[list[int]]:
    """The same on host lists of (parents, values), one node at a time: the readable reference."""
    taken: list[list[int]] = [[] for _ in trees]
    heap = [(-values[i], 1, b, i) for b, (parents, values) in enumerate(trees) for i in _below(parents, -1)]
    heapq.heapify(heap)
    for _ in range(capacity):
        if not heap:
            break
        value, depth, b, node = heapq.heappop(heap)
        taken[b].append(node)
        parents, values = trees[b]
        for child in _below(parents, node):
            heapq.heappush(heap, (max(value, -values[child]), depth + 1, b, child))
    return [sorted(nodes) for nodes in taken]


def _below(parents: Seq[int], node: int) -> list[int]:
    return [i for i, parent in enumerate(parents) if parent == node]


def keep_best(drafts: DraftBatch, capacity: int) -> DraftBatch:
    """The trees cut down to `best_nodes`.

    Which tokens are left depends on what they are, so the result is CHOSEN whatever the drafts were (DESIGN invariant
    5).
    """
    left = keep(drafts, best_nodes(drafts, capacity))
    return replace(left, kind=Kind.CHOSEN, node_kind=None, multiplicity=None)
