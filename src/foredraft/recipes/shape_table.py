"""The table of shapes: what `--shape` spells, such as `eagle2:nodes=64,width=8`. Knows no drafter.

A factory's parameters with defaults can be spelled. `length` is the method's draft length, and the depth of a tree for
which none is spelled (depth 0); `costs` yields the target's cost model on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from ..control.cost import CostModel, Costs
from ..control.cost_aware_tree import CostAwareTree
from ..core.shapes.base import Chain, Shape
from ..core.shapes.dyspec import DySpec
from ..core.shapes.dyspec_layers import DySpecLayers
from ..core.shapes.eagle2_tree import Eagle2Tree
from ..core.shapes.opt_tree import OptTree
from ..core.shapes.sequoia import Sequoia
from ..core.shapes.static_tree import LANTERN_PATHS, StaticTree, rank_paths
from ..core.spec import PartTable
from ..core.verify import Rule
from ..errors import UsageError
from ..types import Kind, Topology

Number = TypeVar("Number", int, float)
# Acceptance by rank, assumed: the first guess is right six times in ten. `RankCounts` measures a drafter's own.
RANKS = "0.6/0.15/0.06/0.03"
MOST_NODES = 64  # of a Sequoia tree whose size the cost model decides


def chain(length: int, depth: int = 0, drawn: bool = True) -> Shape:
    """One token after another, drawn or the top one."""
    return Chain(depth or length, kind=Kind.SAMPLED_WITHOUT_REPLACEMENT if drawn else Kind.CHOSEN)


def static(length: int, branching: str = "4x2x2", drawn: bool = False, paths: str = "", depth: int = 0) -> Shape:
    """Fixed branching by level, 1 below (Medusa, SpecInfer); or rank paths 0/1/00."""
    deep = depth or length
    if paths:
        return StaticTree(tuple(path for path in _ranks(paths) if len(path) <= deep), drawn=drawn)
    counts = _numbers("branching", branching, "x", int)
    return StaticTree((*counts, *[1] * deep)[:deep], drawn=drawn)


def eagle2(length: int, nodes: int = 32, width: int = 8, depth: int = 0) -> Shape:
    """Grows where the product of draft probabilities is largest (EAGLE-2)."""
    return Eagle2Tree(nodes, width, depth or length)


def cost_aware(length: int, costs: CostModel, nodes: int = 32, width: int = 8, depth: int = 0) -> Shape:
    """EAGLE-2's tree at the size that pays by this machine's cost model."""
    live = Costs(costs)
    return CostAwareTree(nodes, width, depth or length, costs=live, timing=live.untimed())


def opt_tree(length: int, nodes: int = 25, gain: float = 0.5, depth: int = 0) -> Shape:
    """Layers while each adds `gain` expected tokens (OPT-Tree)."""
    return OptTree(nodes, depth or length, gain)


def dyspec(length: int, nodes: int = 16, depth: int = 0, drawn: bool = True) -> Shape:
    """Node by node where the verifier is most likely to look (DySpec)."""
    return DySpec(nodes, depth or length, drawn)


def dyspec_layers(
    length: int,
    nodes: int = 32,
    width: int = 16,
    threshold: float = 0.0,
    adapt: float = 0.3,
    depth: int = 0,
    drawn: bool = True,
) -> Shape:
    """DySpec level by level over a threshold; 0 = 1 / nodes."""
    return DySpecLayers(nodes, width, depth or length, drawn, threshold or None, adapt)


def sequoia(length: int, costs: CostModel, nodes: int = 24, ranks: str = RANKS, depth: int = 0) -> Shape:
    """The best fixed tree for acceptance by rank (Sequoia); 0 nodes: as many as pay."""
    accept, deep = _numbers("ranks", ranks, "/", float), depth or length
    if nodes > 0:
        return _sequoia(accept, nodes, deep)
    draft = Costs(costs).untimed().level_seconds
    verify = {size: costs.seconds(size) for size in range(2, MOST_NODES + 1)}
    choice = Sequoia(accept, MOST_NODES, deep + 1).best(draft, verify)
    return _sequoia(accept, choice.size, choice.layers - 1)


@lru_cache
def _sequoia(accept: tuple[float, ...], nodes: int, depth: int) -> StaticTree:
    size = min(nodes, sum(len(accept) ** level for level in range(depth + 1)))
    return StaticTree(Sequoia(accept, size, depth + 1).paths(size, depth + 1), drawn=True)


def lantern(length: int, depth: int = 0) -> Shape:
    """A fixed tree for flat distributions (LANTERN++)."""
    return StaticTree(tuple(path for path in LANTERN_PATHS if len(path) <= (depth or length)))


SHAPES: PartTable[Shape] = PartTable(
    "shape",
    {
        "chain": chain,
        "static": static,
        "eagle2": eagle2,
        "cost-aware": cost_aware,
        "opt-tree": opt_tree,
        "dyspec": dyspec,
        "dyspec-layers": dyspec_layers,
        "sequoia": sequoia,
        "lantern": lantern,
    },
    aliases={
        "tree": "static",
        "sampled-tree": "static:drawn=true",
        "value-tree": "eagle2",
        "cost-tree": "cost-aware",
        "lantern-tree": "lantern",
    },
)
SHAPE_NAMES = tuple(SHAPES.factories)


def drafts_made() -> frozenset[tuple[Kind, Topology]]:
    """The kinds of drafts that shapes make, with whatever parameters."""
    costs = CostModel((1, 8), (256,), (1,), (((1.0, 1.2),),))  # any will do
    either = [name for name in SHAPES.factories if "drawn" in SHAPES.parameters(name)]
    texts = [*SHAPES.factories, *(f"{name}:drawn={word}" for name in either for word in ("true", "false"))]
    made = [SHAPES.make(text, length=lambda: 3, costs=lambda: costs) for text in texts]
    return frozenset((shape.kind, shape.topology) for shape in made)


def is_fed(rule: Rule) -> bool:
    """Whether a rule for several candidates gets such drafts from any shape; rules for chains always do."""
    trees = {pair for pair in rule.exact_for if pair[1] is Topology.TREE}
    return not trees or bool(trees & drafts_made())


def deepest(shape: Shape) -> int:
    """The longest path that a shape drafts."""
    if isinstance(shape, Chain):
        return shape.nodes
    return len(shape.layout.levels(shape.nodes)) if isinstance(shape, StaticTree) else int(getattr(shape, "depth", 1))


def _numbers(what: str, text: str, separator: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        found = tuple(kind(part) for part in text.split(separator))
    except ValueError:
        found = ()
    if not found or min(found) <= 0:
        raise UsageError(f"{what} are positive numbers with {separator!r} between them, not {text!r}")
    return found


def _ranks(text: str) -> tuple[tuple[int, ...], ...]:
    if not text.replace("/", "").isdigit():
        raise UsageError(f"paths are ranks below ten with '/' between paths, as in 0/1/00/01, not {text!r}")
    return rank_paths(text.replace("/", " "))
