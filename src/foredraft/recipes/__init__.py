"""Recipes: named choices of parts, and `LLM`, the front door that puts them together."""

from .llm import LLM, Chunk
from .recipe import Card, Options, Recipe
from .table import RECIPES, find_recipe

__all__ = ["LLM", "RECIPES", "Card", "Chunk", "Options", "Recipe", "find_recipe"]
