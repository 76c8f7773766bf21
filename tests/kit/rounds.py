"""Many rounds at once, the way production runs them: drafts for a large batch, drawn and judged as tensors.

Contexts are numbered like a heap: the root is 0 and token v after context c is c * V + v + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foredraft.core.distributions.tensors import DenseDistribution, LazyDistributions
from foredraft.core.rng.keyed import KeyedRng, Purpose
from foredraft.core.trees.layout import static_tree
from foredraft.core.verify import BatchCase, Rule
from foredraft.types import Distribution, DraftBatch, Kind, Verdict

from .tables import Prefix, TableModel


@dataclass(frozen=True)
class Rounds:
    """N independent rounds of one (target, draft) pair on shape `shape`; every round has its own seed."""

    target: TableModel
    drafter: TableModel
    shape: Sequence[int]
    kind: Kind
    count: int
    seed: int = 0

    @property
    def rng(self) -> KeyedRng:
        every = torch.arange(self.count, dtype=torch.int64)
        return KeyedRng(every * 7919 + self.seed, every % 5, every % 11)

    def texts(self, rule: Rule) -> Tensor:
        """[N] the first two tokens of every round as one number, continued by the target where one was emitted."""
        drafts, context = self.draft()
        p = table_of(self.target, len(self.shape) + 1)
        case = BatchCase(drafts, LazyDistributions(lambda row: distribution_at(p, context, row)), self.rng)
        verdict = rule.verify_batch(case)
        first = _token_at(drafts, verdict, 0)
        drawn = DenseDistribution(p[first + 1]).draw(
            torch.rand(self.count, generator=torch.Generator().manual_seed(self.seed))
        )
        second = torch.where(verdict.accepted > 0, _token_at(drafts, verdict, 1), drawn)
        return first * self.target.vocab + second

    def draft(self) -> tuple[DraftBatch, Tensor]:
        """The drafts, and the context [N, nodes + 1] after every row."""
        q, vocab = table_of(self.drafter, len(self.shape)), self.drafter.vocab
        shape = static_tree(self.shape)
        nodes = len(shape.parent)
        token = torch.zeros((self.count, nodes), dtype=torch.int64)
        context = torch.zeros((self.count, nodes + 1), dtype=torch.int64)
        for parent in sorted(set(shape.parent)):
            children = [i for i, above in enumerate(shape.parent) if above == parent]
            token[:, children] = self._candidates(q[context[:, parent + 1]], len(children), parent)
            context[:, [i + 1 for i in children]] = context[:, parent + 1, None] * vocab + token[:, children] + 1
        depth = [len(_path(shape.parent, i)) for i in range(nodes)]
        drafts = DraftBatch(
            token,
            _wide(shape.parent, self.count),
            _wide(depth, self.count),
            _wide(shape.rank, self.count),
            torch.full((self.count,), nodes),
            self.kind,
            branching=max(self.shape),
            levels=len(self.shape),
            distributions=LazyDistributions(lambda row: distribution_at(q, context, row)),
        )
        return (
            merge_equal(drafts, context) if self.kind == Kind.SAMPLED_IID and max(self.shape) > 1 else (drafts, context)
        )

    def _candidates(self, distribution: Tensor, count: int, parent: int) -> Tensor:
        """[N, count] children of one node in draw order; equal i.i.d. draws are not merged yet."""
        chosen = {Kind.CHOSEN: count, Kind.TOP_THEN_SAMPLED: count - 1}.get(self.kind, 0)
        found = list(distribution.topk(chosen, dim=1).indices.unbind(dim=1))
        node = torch.full((self.count,), parent)
        for attempt in range(chosen, count):
            left = distribution.clone()
            if found and self.kind != Kind.SAMPLED_IID:
                left.scatter_(1, torch.stack(found, dim=1), 0.0)
            found.append(self.rng.draw(DenseDistribution(left), Purpose.DRAFT, node, attempt))
        return torch.stack(found, dim=1)


def merge_equal(drafts: DraftBatch, context: Tensor) -> tuple[DraftBatch, Tensor]:
    """Merge equal i.i.d. draws below the root, in the order of first sight. For trees of one level."""
    assert drafts.levels == 1
    token = drafts.token
    same = token[:, :, None] == token[:, None, :]
    first = ~torch.tril(same, diagonal=-1).any(dim=2)
    front = (~first).to(torch.int8).argsort(dim=1, stable=True)
    merged = DraftBatch(
        token.gather(1, front),
        drafts.parent,
        drafts.depth,
        drafts.order,
        first.sum(dim=1),
        drafts.kind,
        drafts.branching,
        drafts.levels,
        drafts.distributions,
        same.sum(dim=2).gather(1, front),
    )
    return merged, torch.cat([context[:, :1], context[:, 1:].gather(1, front)], dim=1)


def table_of(model: TableModel, depth: int) -> Tensor:
    """[contexts, V] float32: the distributions of all prefixes up to `depth` tokens, in heap order."""
    level: list[Prefix] = [()]
    rows = []
    for _ in range(depth + 1):
        rows += [model.next_distribution(prefix) for prefix in level]
        level = [(*prefix, v) for prefix in level for v in range(model.vocab)]
    return torch.from_numpy(np.stack(rows)).to(torch.float32)


def distribution_at(table: Tensor, context: Tensor, row: Tensor) -> Distribution:
    return DenseDistribution(table[context.gather(1, row[:, None])[:, 0]])


def _token_at(drafts: DraftBatch, verdict: Verdict, place: int) -> Tensor:
    """[N] token at `place` of each emitted text; the target's own token from the end of the path on."""
    if place >= verdict.path.shape[1]:
        return verdict.token
    node = verdict.path[:, place]
    return torch.where(node >= 0, drafts.token.gather(1, node.clamp(min=0)[:, None])[:, 0], verdict.token)


def _path(parent: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*_path(parent, parent[node]), node]


def _wide(column: list[int], count: int) -> Tensor:
    return torch.tensor(column).expand(count, -1).contiguous()
