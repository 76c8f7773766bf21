"""The decoder's passes in C++, for CPUs with bf16 products. Where they are missing, torch does the same."""

from .library import Layer, Library, Pass, Span, Weight, library
from .tiles import COLUMNS, Tiles, fits

__all__ = ["COLUMNS", "Layer", "Library", "Pass", "Span", "Tiles", "Weight", "fits", "library"]
