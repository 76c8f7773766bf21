"""Every level of instructions that this machine can run, for tests that hold for each of them."""

from __future__ import annotations

from functools import cache

import pytest

from foredraft.models import native
from foredraft.models.native.build import built
from foredraft.models.native.levels import LEVELS, possible

NAMES = [level.name for level in possible()] if native.compiled() is not None else []


@cache
def library(name: str) -> native.Compiled:
    return native.Compiled(built(LEVELS[name]), LEVELS[name])


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> native.Compiled:
    """Let everything that is made from now on run on this level."""
    found = library(name)
    monkeypatch.setattr(native, "compiled", lambda: found)
    return found


def worst_share(code: native.Compiled) -> float:
    """How far a product may be off as a share of the greatest: by the rounding of rows to 16 bits, or to 12 where tile
    registers multiply them. What enters in bf16 is off by up to 4e-3 itself."""
    return 1e-3 if code.level.name.startswith("amx") else 1e-4
