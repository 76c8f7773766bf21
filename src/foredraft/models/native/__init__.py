"""The decoder's passes in C++, for CPUs. Where they cannot be had, torch does the same."""

from .compiled import MOST, Compiled, compiled
from .levels import LEVELS, SWITCH, Level, has_bf16_products
from .structs import (
    BlockRows,
    Copying,
    Correction,
    GreedyChain,
    Layer,
    Options,
    Pass,
    Source,
    Span,
    Tail,
    ValueTree,
    Weight,
)
from .tiles import ALL_GRIDS, COLUMNS, FLAT_GRIDS, NO_GRIDS, Tiles, fits

__all__ = [
    "ALL_GRIDS",
    "COLUMNS",
    "FLAT_GRIDS",
    "LEVELS",
    "MOST",
    "NO_GRIDS",
    "SWITCH",
    "BlockRows",
    "Compiled",
    "Copying",
    "Correction",
    "GreedyChain",
    "Layer",
    "Level",
    "Options",
    "Pass",
    "Source",
    "Span",
    "Tail",
    "Tiles",
    "ValueTree",
    "Weight",
    "compiled",
    "fits",
    "has_bf16_products",
]
