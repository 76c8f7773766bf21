"""Who is audited: something that writes texts, and something that knows the distribution which they should follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .sequential.cells import CellDistribution, Text

CELLS = 16  # tokens that keep their own cell where whole distributions are known


@dataclass(slots=True)
class Activity:
    """What the speculation did meanwhile; a test of texts that nobody drafted for proves nothing."""

    drafted: int = 0
    accepted: int = 0


class Subject(Protocol):
    """A sampler under audit. Prompts are token ids, or strings where only an endpoint knows its tokens."""

    name: str
    activity: Activity | None  # None = it cannot be known

    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        """`count` independent continuations of at most `tokens` tokens; no two calls get the same seeds."""

    def distributions(self, prompt: Text, prefixes: Sequence[Text]) -> list[CellDistribution]:
        """The target's own distribution of the next token after prompt + prefix."""
