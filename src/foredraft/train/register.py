"""Heads of your own in the trainer: registered by name, trained and loaded like those that come with the package."""

from __future__ import annotations

from ..errors import UsageError
from ..models.heads import RecurrentHead
from ..models.heads.loader import BUILDERS
from .kinds import KINDS, Settings
from .kinds.medusa import Recurrent


def add_head(name: str, head: type[RecurrentHead], settings: Settings | None = None) -> None:
    """Make a head known by name: the trainer then trains it, and a method's `drafter` may name its folder."""
    if name in KINDS:
        raise UsageError(f"there is a kind of drafter named {name!r} already")
    BUILDERS[name] = head
    KINDS[name] = Recurrent(name, head, settings or Settings(length=3))
