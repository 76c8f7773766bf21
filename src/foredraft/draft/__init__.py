"""Drafters: whatever guesses the next tokens. They see sequences and target states, never the engine."""

from .base import Drafter, Round, WrappedDrafter

__all__ = ["Drafter", "Round", "WrappedDrafter"]
