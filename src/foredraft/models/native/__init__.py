"""The decoder's passes in C++, for CPUs with bf16 products. Where they are missing, torch does the same."""

from .compiled import MOST, Compiled, compiled
from .structs import Layer, Pass, Source, Span, Tail, Weight
from .tiles import COLUMNS, Tiles, fits

__all__ = [
    "COLUMNS",
    "MOST",
    "Compiled",
    "Layer",
    "Pass",
    "Source",
    "Span",
    "Tail",
    "Tiles",
    "Weight",
    "compiled",
    "fits",
]
