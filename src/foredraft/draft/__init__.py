"""Drafters: whatever guesses the next tokens. They see sequences and target states, never the engine."""

from .base import Drafter, Round, WrappedDrafter
from .lookup import Lookup

__all__ = ["Drafter", "Lookup", "Round", "WrappedDrafter"]
