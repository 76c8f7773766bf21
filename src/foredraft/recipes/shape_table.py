"""The table of shapes: what `--shape` spells, such as `eagle2:nodes=64,width=8`. Knows no drafter.

A factory's parameters with defaults can be spelled. `length` is the method's draft length, and the depth of a tree for
which none is spelled (depth 0); `costs` yields the target's cost model on this machine, `measured` what `foredraft
profile` has measured of the drafter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from ..control.cost import CostModel, Costs
from ..control.cost_aware_tree import CostAwareTree
from ..core.shapes.base import Chain, Shape
from ..core.shapes.drawn_tree import IndependentTree, TopThenDrawnTree
from ..core.shapes.dyspec import DySpec
from ..core.shapes.dyspec_layers import DySpecLayers
from ..core.shapes.eagle2_tree import Eagle2Tree
from ..core.shapes.fan import Fan
from ..core.shapes.opt_tree import OptTree
from ..core.shapes.sequoia import Sequoia
from ..core.shapes.static_tree import LANTERN_PATHS, StaticTree, rank_paths
from ..core.spec import PartTable
from ..errors import UsageError, check_drafting
from ..types import Kind

Number = TypeVar("Number", int, float)
Measured = Callable[[float], tuple[float, ...] | None]  # temperature -> a drafter's acceptance by rank, None = unknown
# Acceptance by rank where nobody has measured it: the first guess is right six times in ten.
RANKS = (0.6, 0.15, 0.06, 0.03)
MOST_NODES = 128  # of a Sequoia tree whose size the cost model decides


def chain(length: int, depth: int = 0, drawn: bool = True) -> Shape:
    """One token after another, drawn or the top one."""
    return Chain(depth or length, kind=Kind.SAMPLED_WITHOUT_REPLACEMENT if drawn else Kind.CHOSEN)


def static(length: int, branching: str = "4x2x2", drawn: bool = False, paths: str = "", depth: int = 0) -> Shape:
    """Fixed branching by level, 1 below (Medusa, SpecInfer); or rank paths 0/1/00."""
    deep = depth or length
    if paths:
        return StaticTree(tuple(path for path in _ranks(paths) if len(path) <= deep), drawn=drawn)
    return StaticTree(_by_level(branching, deep), drawn=drawn)


def independent(length: int, branching: str = "4x2x2", depth: int = 0) -> Shape:
    """Independent draws by level, 1 below, equal ones merged and counted; 8 = eight sequences (SpecTr)."""
    return IndependentTree(_by_level(branching, depth or length))


def top_then_drawn(length: int, branching: str = "4x2x2", depth: int = 0) -> Shape:
    """By level the top k - 1 tokens and one draw from the others, 1 draw below (greedy multi-draft)."""
    return TopThenDrawnTree(_by_level(branching, depth or length))


def eagle2(length: int, nodes: int = 32, width: int = 8, depth: int = 0) -> Shape:
    """Grows where the product of draft probabilities is largest (EAGLE-2)."""
    return Eagle2Tree(_some(nodes, "nodes"), _some(width), depth or length)


def cost_aware(length: int, costs: CostModel, nodes: int = 32, width: int = 8, depth: int = 0) -> Shape:
    """EAGLE-2's tree at the size that pays by this machine's cost model."""
    live = Costs(costs)
    return CostAwareTree(_some(nodes, "nodes"), _some(width), depth or length, costs=live, timing=live.untimed())


def opt_tree(length: int, nodes: int = 25, gain: float = 0.5, depth: int = 0) -> Shape:
    """Layers while each adds `gain` expected tokens (OPT-Tree)."""
    return OptTree(_some(nodes, "nodes"), depth or length, gain)


def dyspec(length: int, nodes: int = 16, depth: int = 0, drawn: bool = True) -> Shape:
    """Node by node where the verifier is most likely to look (DySpec)."""
    return DySpec(_some(nodes, "nodes"), depth or length, drawn)


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
    return DySpecLayers(_some(nodes, "nodes"), _some(width), depth or length, drawn, threshold or None, adapt)


def sequoia(
    length: int,
    costs: CostModel,
    measured: Measured,
    nodes: int = 24,
    ranks: str = "",
    depth: int = 0,
    temperature: float = 0.0,
) -> Shape:
    """The best fixed tree for acceptance by rank (Sequoia); 0 nodes: as many as pay.

    `ranks` spells the acceptance; else it is what `foredraft profile` measured nearest to `temperature`, else assumed.
    """
    accept = _numbers("ranks", ranks, "/", float) if ranks else measured(temperature) or RANKS
    deep = depth or length
    if nodes > 0:
        return _sequoia(accept, nodes, deep)
    draft = Costs(costs).untimed().level_seconds
    verify = {size: costs.seconds(size) for size in range(2, MOST_NODES + 1)}
    choice = Sequoia(accept, MOST_NODES, deep + 1).best(draft, verify)
    return _sequoia(accept, choice.size - 1, choice.layers - 1)


@lru_cache
def _sequoia(accept: tuple[float, ...], nodes: int, depth: int) -> StaticTree:
    size = 1 + min(nodes, sum(len(accept) ** level for level in range(1, depth + 1)))  # the root is no node of ours
    return StaticTree(Sequoia(accept, size, depth + 1).paths(size, depth + 1), drawn=True)


def fan(length: int, width: int = 6, depth: int = 0, drawn: bool = True) -> Shape:
    """Several first tokens and one chain below each (target-init-mcsd)."""
    return Fan(_some(width), depth or length, drawn)


def lantern(length: int, depth: int = 0, drawn: bool = False) -> Shape:
    """A fixed tree for flat distributions (LANTERN++)."""
    return StaticTree(tuple(path for path in LANTERN_PATHS if len(path) <= (depth or length)), drawn)


SHAPES: PartTable[Shape] = PartTable(
    "shape",
    {
        "chain": chain,
        "static": static,
        "independent": independent,
        "top-then-drawn": top_then_drawn,
        "eagle2": eagle2,
        "cost-aware": cost_aware,
        "opt-tree": opt_tree,
        "dyspec": dyspec,
        "dyspec-layers": dyspec_layers,
        "sequoia": sequoia,
        "fan": fan,
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


def _some(count: int, what: str = "width") -> int:
    check_drafting("shape", **{what: count})
    return count


def _by_level(branching: str, depth: int) -> tuple[int, ...]:
    return (*_numbers("branching", branching, "x", int), *[1] * depth)[:depth]


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
