"""The decoder's passes in C++, for CPUs with bf16 products. Where they are missing, torch does the same."""

from .compiled import Compiled, Layer, Pass, Span, Weight, compiled
from .tiles import COLUMNS, Tiles, fits

__all__ = ["COLUMNS", "Compiled", "Layer", "Pass", "Span", "Tiles", "Weight", "compiled", "fits"]
