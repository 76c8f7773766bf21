"""Drafts of every kind, drawn from a table model through a Dice, and the blocks that rules look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...core.distributions.tensors import DenseLaw, TableLaws
from ...core.rng.keyed import Dice, Purpose
from ...core.trees.layout import sibling_ranks, trees
from ...core.verify import BatchCase, Roll, TreeCase
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


def draft_tree(model: TableModel, shape: Sequence[int], kinds: Kind | Sequence[Kind], dice: Dice) -> Draft:
    """A tree with up to shape[d] children per node of level d, of one kind or of one kind per level."""
    per_level = [kinds] * len(shape) if isinstance(kinds, Kind) else list(kinds)
    draft = Draft((), (), (), ())
    frontier = [-1]
    for count, kind in zip(shape, per_level, strict=True):
        start = len(draft.token)
        for node in frontier:
            found = candidates(model.next_law(draft.prefix(node)), count, kind, dice, node)
            draft = Draft(
                draft.token + tuple(token for token, _ in found),
                draft.parent + (node,) * len(found),
                draft.multiplicity + tuple(times for _, times in found),
                draft.kind + (kind,) * len(found),
            )
        frontier = list(range(start, len(draft.token)))
    return draft


def candidates(law: Array, count: int, kind: Kind, dice: Dice, node: int) -> Candidates:
    """Children of one node, made the way their kind says."""
    return _MAKERS[kind](law, count, dice, node)


def _draw(law: Array, dice: Dice, node: int, turn: int) -> int:
    row = DenseLaw(torch.from_numpy(np.ascontiguousarray(law))[None])
    return int(dice.draw(row, Purpose.DRAFT, torch.tensor([node]), turn)[0])


def _without_replacement(law: Array, count: int, dice: Dice, node: int) -> Candidates:
    left, found = law.copy(), []
    for turn in range(min(count, int((law > 0).sum()))):
        token = _draw(left / left.sum(), dice, node, turn)
        found.append((token, 1))
        left[token] = 0.0
    return found


def _in_turn(law: Array, count: int, dice: Dice, node: int) -> Candidates:
    """The next one is drawn only while the elder ones leave half of the law."""
    found = _without_replacement(law, 1, dice, node)
    while len(found) < count and law.sum() - law[[token for token, _ in found]].sum() >= 0.5:
        left = law.copy()
        left[[token for token, _ in found]] = 0.0
        found.append((_draw(left / left.sum(), dice, node, len(found)), 1))
    return found


def _independent(law: Array, count: int, dice: Dice, node: int) -> Candidates:
    times: dict[int, int] = {}
    for turn in range(count):
        token = _draw(law, dice, node, turn)
        times[token] = times.get(token, 0) + 1
    return list(times.items())


def _chosen(law: Array, count: int, dice: Dice, node: int) -> Candidates:
    return [(int(token), 1) for token in np.argsort(-law, kind="stable")[:count]]


def _top_then_sampled(law: Array, count: int, dice: Dice, node: int) -> Candidates:
    found = _chosen(law, count - 1, dice, node)
    left = law.copy()
    left[[token for token, _ in found]] = 0.0
    if left.sum() > 0:
        found.append((_draw(left / left.sum(), dice, node, 0), 1))
    return found


_MAKERS: dict[Kind, Callable[[Array, int, Dice, int], Candidates]] = {
    Kind.CHOSEN: _chosen,
    Kind.SAMPLED_WITHOUT_REPLACEMENT: _without_replacement,
    Kind.SAMPLED_IID: _independent,
    Kind.TOP_THEN_SAMPLED: _top_then_sampled,
    Kind.SAMPLED_IN_TURN: _in_turn,
}


def rows_of(draft: Draft, model: TableModel) -> Array:
    """[N + 1, V] the model's law behind the root and behind every node."""
    return np.stack([model.next_law(draft.prefix(node)) for node in range(-1, len(draft.token))])


def tree_case_of(draft: Draft, target: TableModel, drafter: TableModel) -> Callable[[Dice], TreeCase]:
    """What the readable form of a rule looks at, waiting for its dice."""
    p, q = rows_of(draft, target), rows_of(draft, drafter)
    order = sibling_ranks(draft.parent)
    tree = DraftTree(list(draft.token), list(draft.parent), list(draft.kind), list(draft.multiplicity), order)
    return lambda dice: TreeCase(tree, p.__getitem__, q.__getitem__, Roll(dice))


def batch_case_of(
    drafts: Sequence[Draft], target: TableModel, drafter: TableModel, dtype: torch.dtype = torch.float64
) -> Callable[[Dice], BatchCase]:
    """What the batched form of a rule looks at: a padded block with tables of p and q, waiting for its dice."""
    width = max(len(draft.token) for draft in drafts) + 1

    def table(model: TableModel) -> TableLaws:
        rows = np.zeros((len(drafts), width, model.vocab))
        for b, draft in enumerate(drafts):
            rows[b, : len(draft.token) + 1] = rows_of(draft, model)
        return TableLaws(torch.from_numpy(rows).to(dtype))

    kinds = {kind for draft in drafts for kind in draft.kind}
    block = trees(
        [(draft.token, draft.parent) for draft in drafts],
        kinds.pop() if len(kinds) == 1 else Kind.CHOSEN,
        multiplicity=[draft.multiplicity for draft in drafts],
        node_kind=[draft.kind for draft in drafts] if kinds else None,
        laws=table(drafter),
    )
    p = table(target)
    return lambda dice: BatchCase(block, p, dice)
