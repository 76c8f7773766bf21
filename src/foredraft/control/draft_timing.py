"""What a drafter usually does in a round: how long, how much, how deep."""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 3  # rounds that may have something to compile or record


@dataclass(slots=True)
class DraftTiming:
    """Running means. A young timing follows quickly, an old one slowly, and a hiccup counts as twice the usual time.

    The first rounds may compile or record something: of them the quickest counts.
    """

    level_seconds: float = 0.0
    nodes: float = 0.0  # of one sequence
    levels: float = 0.0
    rounds: int = 0

    @property
    def level_nodes(self) -> float:
        """Nodes of one sequence on one level."""
        return self.nodes / self.levels if self.levels else 1.0

    def follow(self, level_seconds: float, nodes: float, levels: float) -> None:
        """A round of drafts was like this."""
        self.rounds += 1
        pace = max(0.1, 1 / self.rounds)
        if 1 < self.rounds <= FIRST:
            level_seconds = self.level_seconds = min(level_seconds, self.level_seconds)
        elif self.rounds > FIRST:
            level_seconds = min(level_seconds, 2 * self.level_seconds)
        self.level_seconds += pace * (level_seconds - self.level_seconds)
        self.nodes += pace * (nodes - self.nodes)
        self.levels += pace * (levels - self.levels)
