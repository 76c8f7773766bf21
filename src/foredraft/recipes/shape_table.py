"""The table of shapes: what `--shape` names, by the longest path that may be drafted."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ..core.shapes.base import Chain, Shape
from ..core.shapes.dyspec import DySpec
from ..core.shapes.dyspec_layers import DySpecLayers
from ..core.shapes.eagle2_tree import Eagle2Tree
from ..core.shapes.opt_tree import OptTree
from ..core.shapes.sequoia import Sequoia
from ..core.shapes.static_tree import LANTERN_PATHS, StaticTree

# Acceptance by rank, assumed: the first guess is right six times in ten. `RankCounts` measures a drafter's own.
USUAL_RANKS = (0.6, 0.15, 0.06, 0.03)
SEQUOIA_NODES = 24


def _branching(depth: int) -> tuple[int, ...]:
    """Wide at the root, a chain further down: 4, 2, 2, then 1."""
    return (4, 2, 2, *[1] * depth)[:depth]


@lru_cache
def _sequoia(depth: int) -> StaticTree:
    size = min(SEQUOIA_NODES, sum(len(USUAL_RANKS) ** level for level in range(depth + 1)))
    return StaticTree(Sequoia(USUAL_RANKS, size, depth + 1).paths(size, depth + 1), drawn=True)


SHAPES: dict[str, Callable[[int], Shape]] = {
    "chain": Chain,
    "tree": lambda depth: StaticTree(_branching(depth)),
    "sampled-tree": lambda depth: StaticTree(_branching(depth), drawn=True),
    "value-tree": lambda depth: Eagle2Tree(depth=depth),
    "opt-tree": lambda depth: OptTree(depth=depth),
    "dyspec": lambda depth: DySpec(nodes=16, depth=depth),
    "dyspec-layers": lambda depth: DySpecLayers(depth=depth, adapt=0.3),
    "sequoia": _sequoia,
    "lantern-tree": lambda depth: StaticTree(tuple(path for path in LANTERN_PATHS if len(path) <= depth)),
}
COST_TREE = "cost-tree"  # a value tree at the size that pays on this machine: it needs the cost model
SHAPE_NAMES = (*SHAPES, COST_TREE)
