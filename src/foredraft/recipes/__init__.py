"""Recipes: named choices of parts, and `LLM`, the front door that puts them together."""

from .llm import LLM, Chunk
from .table import RECIPES, Card, Options, Recipe, find_recipe

__all__ = ["LLM", "RECIPES", "Card", "Chunk", "Options", "Recipe", "find_recipe"]
