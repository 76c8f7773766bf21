"""Trees as arrays: building them from host lists, who descends from whom, and node orders that make masks cheap.

Everything here is pure. Functions on batches take `parent` [B, N] as `DraftBatch` stores it (-1 = child of the root,
always smaller than the node's own index) and an optional `length` [B]; nodes at and after `length` are padding.
None of them loops over nodes or looks at a tensor's values from the host, so all may run inside a captured graph.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ...types import Distributions, DraftBatch, Kind

Device = torch.device | str


# --- building -------------------------------------------------------------------------------------------------------


def trees(
    drafts: Seq[tuple[Seq[int], Seq[int]]],
    kind: Kind = Kind.CHOSEN,
    device: Device = "cpu",
    *,
    order: Seq[Seq[int]] | None = None,
    multiplicity: Seq[Seq[int]] | None = None,
    node_kind: Seq[Seq[int]] | None = None,
    value: Seq[Seq[float]] | None = None,
    distributions: Distributions | None = None,
) -> DraftBatch:
    """One padded block from host lists: (tokens, parents) of each sequence.

    Siblings rank by their order in the list unless `order` says otherwise. The optional columns
    are lists of the same lengths as the tokens.
    """
    parents = [list(parent) for _, parent in drafts]
    lengths = tuple(len(tokens) for tokens, _ in drafts)
    ranks = [sibling_ranks(parent) for parent in parents] if order is None else [list(row) for row in order]
    depths = [depths_of(parent) for parent in parents]
    width = max(lengths, default=0)

    def block(rows: Seq[Seq[float]], fill: int, dtype: torch.dtype = torch.int64) -> Tensor:
        for row, length in zip(rows, lengths, strict=True):
            if len(row) != length:
                raise ValueError(f"a column has {len(row)} entries where the sequence has {length} drafted tokens")
        padded = [list(row) + [fill] * (width - len(row)) for row in rows]
        return torch.tensor(padded, dtype=dtype, device=device).reshape(len(lengths), width)

    return DraftBatch(
        token=block([tokens for tokens, _ in drafts], 0),
        parent=block(parents, -1),
        depth=block(depths, 0),
        order=block(ranks, 0),
        length=torch.tensor(lengths, dtype=torch.int64, device=device),
        kind=kind,
        branching=max((rank + 1 for row in ranks for rank in row), default=1),
        levels=max((depth for row in depths for depth in row), default=0),
        distributions=distributions,
        multiplicity=None if multiplicity is None else block(multiplicity, 1),
        node_kind=None if node_kind is None else block(node_kind, int(kind)),
        value=None if value is None else block(value, 0, torch.float32),
        lengths_host=lengths,
    )


def depths_of(parent: Seq[int]) -> list[int]:
    """Depth of each node of one tree; 1 = child of the root."""
    depth: list[int] = []
    for node, above in enumerate(parent):
        if not -1 <= above < node:
            raise ValueError(f"node {node} has parent {above}, not an earlier node")
        depth.append(1 if above < 0 else depth[above] + 1)
    return depth


def sibling_ranks(parent: Seq[int]) -> list[int]:
    """Rank of each node among its siblings, by position in the list."""
    seen: dict[int, int] = {}
    ranks: list[int] = []
    for above in parent:
        ranks.append(seen.get(above, 0))
        seen[above] = ranks[-1] + 1
    return ranks


class Shape(NamedTuple):
    """A static tree: which rank of its parent's candidates each node takes. Parents come first, level by level."""

    parent: list[int]
    rank: list[int]


def static_tree(shape: Seq[int] | Seq[Seq[int]]) -> Shape:
    """A fixed shape from branching counts per level, (4, 2, 2), or from rank paths, [[0], [1], [0, 0]].

    With counts, child j of the m-th node of a level is node m * k + j of the next level.
    """
    paths = _rank_paths(shape)
    index = {path: node for node, path in enumerate(paths)}
    if () in index or len(index) != len(paths):
        raise ValueError("a static tree lists the root, or one path twice")
    index[()] = -1
    for path in paths:
        if path[:-1] not in index:
            raise ValueError(f"a static tree holds path {list(path)} without its parent")
    return Shape([index[path[:-1]] for path in paths], [path[-1] for path in paths])


def _rank_paths(shape: Seq[int] | Seq[Seq[int]]) -> list[tuple[int, ...]]:
    if all(isinstance(entry, int) for entry in shape):
        counts = cast(Seq[int], shape)
        return [path for level in range(len(counts)) for path in product(*map(range, counts[: level + 1]))]
    return sorted((tuple(path) for path in cast(Seq[Seq[int]], shape)), key=lambda path: (len(path), path))


def trie(paths: Seq[Seq[int]]) -> tuple[list[int], list[int]]:
    """Merge token paths into one prefix tree: (tokens, parents), nodes in the order in which they are first needed."""
    tokens: list[int] = []
    parents: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for path in paths:
        node = -1
        for token in path:
            if (node, token) not in known:
                known[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = known[node, token]
    return tokens, parents


# --- who descends from whom -----------------------------------------------------------------------------------------


def ancestor_mask(parent: Tensor, length: Tensor | None = None, levels: int | None = None) -> Tensor:
    """[B, N, N] bool: node j is i itself or an ancestor of i. Padding sees only itself.

    Pointer doubling: after t steps a row holds its 2^t nearest (itself included), so ceil(log2(levels)) steps do;
    `levels` is the greatest depth, or N where it is not known.
    """
    batch, width = parent.shape
    inside = _inside(parent, length)
    seen = torch.eye(width + 1, dtype=torch.bool, device=parent.device).repeat(batch, 1, 1)
    seen[:, width] = False  # the row that "no ancestor" points to
    jump = torch.where(inside & (parent >= 0), parent, width)
    jump = torch.cat([jump, jump.new_full((batch, 1), width)], dim=1)
    for _ in range(max(0, (width if levels is None else min(levels, width)) - 1).bit_length()):
        seen = seen | seen.gather(1, jump[:, :, None].expand(-1, -1, width + 1))
        jump = jump.gather(1, jump)
    return seen[:, :width, :width]


def subtree_sizes(parent: Tensor, length: Tensor | None = None, levels: int | None = None) -> Tensor:
    """[B, N] int64: nodes below and including each node; 1 on padding."""
    return ancestor_mask(parent, length, levels).sum(dim=1)


def heavy_order(parent: Tensor, length: Tensor | None = None, levels: int | None = None) -> Tensor:
    """[B, N] int64 permutation: the node to put at each place, depth first, larger subtrees first.

    A node's place is the number of nodes before it: along its path, one per ancestor and the subtrees of the
    siblings that go first. Padding stays where it is.
    """
    batch, width = parent.shape
    inside = _inside(parent, length)
    mask = ancestor_mask(parent, length, levels)
    size = mask.sum(dim=1)
    index = torch.arange(width, device=parent.device)
    siblings = (parent[:, :, None] == parent[:, None, :]) & inside[:, :, None] & inside[:, None, :]
    larger = size[:, None, :] > size[:, :, None]  # [b, i, j]: j's subtree is larger than i's
    earlier = (size[:, None, :] == size[:, :, None]) & (index[None, :] < index[:, None])
    before = (size[:, None, :] * (siblings & (larger | earlier))).sum(dim=2) + 1
    place = (before[:, None, :] * mask).sum(dim=2) - 1
    place = torch.where(inside, place, index)
    return torch.empty_like(place).scatter_(1, place, index.expand(batch, width).contiguous())


def intervals(parent: Tensor, length: Tensor | None = None, levels: int | None = None) -> tuple[Tensor, Tensor]:
    """(begin, end), both [B, N]: in a depth-first order, node j's subtree is exactly the places begin[j] <= i < end[j].

    Wrong for other orders: apply `reorder(drafts, heavy_order(...))` first.
    """
    begin = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)
    return begin, begin + subtree_sizes(parent, length, levels)


def interval_mask(begin: Tensor, end: Tensor) -> Tensor:
    """[B, N, N] bool: the ancestor mask of trees in depth-first order, from two numbers a node."""
    place = torch.arange(begin.shape[1], device=begin.device)[None, :, None]
    return (begin[:, None, :] <= place) & (place < end[:, None, :])


def _inside(parent: Tensor, length: Tensor | None) -> Tensor:
    if length is None:
        return torch.ones_like(parent, dtype=torch.bool)
    return torch.arange(parent.shape[1], device=parent.device)[None, :] < length[:, None]
