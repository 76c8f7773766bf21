"""Drafts of every kind, drawn from a table model through a Rng, and the blocks that rules look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...core.distributions.tensors import DenseDistribution, TableDistributions
from ...core.rng.enumerating import EnumeratingRng
from ...core.rng.keyed import Purpose, Rng
from ...core.trees.layout import sibling_ranks, trees
from ...core.verify import BatchCase, PlainRng, TreeCase
from ...types import DraftTree, Kind
from .table_model import Array, Prefix, TableModel

Candidates = list[tuple[int, int]]  # (token, multiplicity) in draw order


class Draft(NamedTuple):
    """One drafted tree as plain tuples, so that equal drafts are equal keys."""

    token: tuple[int, ...]
    parent: tuple[int, ...]
    multiplicity: tuple[int, ...]
    kind: tuple[Kind, ...]

    def prefix(self, node: int) -> Prefix:
        """The tokens from the root down to `node`."""
        return () if node < 0 else (*self.prefix(self.parent[node]), self.token[node])


def draft_tree(model: TableModel, shape: Sequence[int], kinds: Kind | Sequence[Kind], rng: Rng) -> Draft:
    """A tree with up to shape[d] children per node of level d, of one kind or of one kind per level."""
    per_level = [kinds] * len(shape) if isinstance(kinds, Kind) else list(kinds)
    draft = Draft((), (), (), ())
    frontier = [-1]
    for count, kind in zip(shape, per_level, strict=True):
        start = len(draft.token)
        for node in frontier:
            found = candidates(model.next_distribution(draft.prefix(node)), count, kind, rng, node)
            draft = Draft(
                draft.token + tuple(token for token, _ in found),
                draft.parent + (node,) * len(found),
                draft.multiplicity + tuple(times for _, times in found),
                draft.kind + (kind,) * len(found),
            )
        frontier = list(range(start, len(draft.token)))
    return draft


def candidates(distribution: Array, count: int, kind: Kind, rng: Rng, node: int) -> Candidates:
    """Children of one node, made the way their kind says."""
    return _MAKERS[kind](distribution, count, rng, node)


def _draw(distribution: Array, rng: Rng, node: int, attempt: int) -> int:
    row = DenseDistribution(torch.from_numpy(np.ascontiguousarray(distribution))[None])
    return int(rng.draw(row, Purpose.DRAFT, torch.tensor([node]), attempt)[0])


def _without_replacement(distribution: Array, count: int, rng: Rng, node: int) -> Candidates:
    left, found = distribution.copy(), []
    for attempt in range(min(count, int((distribution > 0).sum()))):
        token = _draw(left / left.sum(), rng, node, attempt)
        found.append((token, 1))
        left[token] = 0.0
    return found


def _adaptively(distribution: Array, count: int, rng: Rng, node: int) -> Candidates:
    """The next one is drawn only while the earlier ones leave half of the distribution."""
    found = _without_replacement(distribution, 1, rng, node)
    while len(found) < count and distribution.sum() - distribution[[token for token, _ in found]].sum() >= 0.5:
        left = distribution.copy()
        left[[token for token, _ in found]] = 0.0
        found.append((_draw(left / left.sum(), rng, node, len(found)), 1))
    return found


def _independent(distribution: Array, count: int, rng: Rng, node: int) -> Candidates:
    times: dict[int, int] = {}
    for attempt in range(count):
        token = _draw(distribution, rng, node, attempt)
        times[token] = times.get(token, 0) + 1
    return list(times.items())


def _chosen(distribution: Array, count: int, rng: Rng, node: int) -> Candidates:
    return [(int(token), 1) for token in np.argsort(-distribution, kind="stable")[:count]]


def _top_then_sampled(distribution: Array, count: int, rng: Rng, node: int) -> Candidates:
    found = _chosen(distribution, count - 1, rng, node)
    left = distribution.copy()
    left[[token for token, _ in found]] = 0.0
    if left.sum() > 0:
        found.append((_draw(left / left.sum(), rng, node, 0), 1))
    return found


_MAKERS: dict[Kind, Callable[[Array, int, Rng, int], Candidates]] = {
    Kind.CHOSEN: _chosen,
    Kind.SAMPLED_WITHOUT_REPLACEMENT: _without_replacement,
    Kind.SAMPLED_IID: _independent,
    Kind.TOP_THEN_SAMPLED: _top_then_sampled,
    Kind.SAMPLED_ADAPTIVELY: _adaptively,
}


def rows_of(draft: Draft, model: TableModel) -> Array:
    """[N + 1, V] the model's distribution after the root and after every node."""
    return np.stack([model.next_distribution(draft.prefix(node)) for node in range(-1, len(draft.token))])


def tree_case_of(draft: Draft, target: TableModel, drafter: TableModel) -> Callable[[Rng], TreeCase]:
    """What the readable form of a rule looks at, waiting for its rng."""
    p, q = rows_of(draft, target), rows_of(draft, drafter)
    order = sibling_ranks(draft.parent)
    tree = DraftTree(list(draft.token), list(draft.parent), list(draft.kind), list(draft.multiplicity), order)
    return lambda rng: TreeCase(tree, p.__getitem__, q.__getitem__, _plain(rng))


class _PlainOutcomes(PlainRng):
    """Enumerated outcomes of plain numbers, without a tensor for each."""

    def flip(self, prob: float, purpose: Purpose, node: int, attempt: int = 0) -> bool:
        return bool(self._take([(1, float(prob)), (0, 1.0 - float(prob))]))

    def draw(self, distribution: Array, purpose: Purpose, node: int, attempt: int = 0) -> int:
        return self._take(list(enumerate((distribution / distribution.sum()).tolist())))

    def draw_at(self, distribution: Array, depth: int) -> int:
        return self.draw(distribution, Purpose.EMIT, depth)

    def _take(self, options: list[tuple[int, float]]) -> int:
        assert isinstance(self.rng, EnumeratingRng)
        return self.rng.take(options)


def _plain(rng: Rng) -> PlainRng:
    return _PlainOutcomes(rng) if isinstance(rng, EnumeratingRng) else PlainRng(rng)


def batch_case_of(
    drafts: Sequence[Draft], target: TableModel, drafter: TableModel, dtype: torch.dtype = torch.float64
) -> Callable[[Rng], BatchCase]:
    """What the batched form of a rule looks at: a padded block with tables of p and q, waiting for its rng."""
    width = max(len(draft.token) for draft in drafts) + 1

    def table(model: TableModel) -> TableDistributions:
        rows = np.zeros((len(drafts), width, model.vocab))
        for b, draft in enumerate(drafts):
            rows[b, : len(draft.token) + 1] = rows_of(draft, model)
        return TableDistributions(torch.from_numpy(rows).to(dtype))

    kinds = {kind for draft in drafts for kind in draft.kind}
    block = trees(
        [(draft.token, draft.parent) for draft in drafts],
        kinds.pop() if len(kinds) == 1 else Kind.CHOSEN,
        multiplicity=[draft.multiplicity for draft in drafts],
        node_kind=[draft.kind for draft in drafts] if kinds else None,
        distributions=table(drafter),
    )
    p = table(target)
    return lambda rng: BatchCase(block, p, rng)
