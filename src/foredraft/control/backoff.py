"""Try, rest, double: how long to leave alone what did not pay the last time. Knows nothing of what is tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Spans of first, 2 first, 4 first, .. rounds, at most `longest`, until a reset; and a countdown through one."""

    first: int
    longest: int
    doublings: int = 0
    left: int = 0  # rounds of the span that runs

    @property
    def span(self) -> int:
        """The length of the next span."""
        return min(self.first << min(self.doublings, 32), self.longest)

    def start(self) -> None:
        """Begin the next span; the one after it is twice as long."""
        self.left, self.doublings = self.span, self.doublings + 1

    def runs(self) -> bool:
        """Count a round; False where the span is over."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def reset(self) -> None:
        self.left = self.doublings = 0
