"""The table of methods, their spelling, and `LLM`, the front door that puts their parts together."""

from .llm import LLM, Chunk
from .recipe import Card, Options, Recipe
from .spelling import MethodSpec, read_method, read_methods
from .table import RECIPES, find_recipe

__all__ = [
    "LLM",
    "RECIPES",
    "Card",
    "Chunk",
    "MethodSpec",
    "Options",
    "Recipe",
    "find_recipe",
    "read_method",
    "read_methods",
]
