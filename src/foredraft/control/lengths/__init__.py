"""Length rules: how many tokens to draft, decided before a round from the rounds before it."""

from .base import LengthRule
from .length_table import LENGTHS, RoundSeconds

__all__ = ["LENGTHS", "LengthRule", "RoundSeconds"]
