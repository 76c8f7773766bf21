"""A live cost model as it stood a moment ago, so that asking it dozens of times a round costs next to nothing."""

from __future__ import annotations

from .cost import CostModel, LiveCosts

RENEWED = 8  # passes after which prices are worked out anew
CONTEXT = 64  # tokens of context that are not told apart


class CostCache:
    """Remembers what passes of each size cost, and forgets it when enough passes have been timed."""

    def __init__(self, costs: CostModel | LiveCosts) -> None:
        self.costs = costs if isinstance(costs, LiveCosts) else LiveCosts(costs)
        self.draft = self.costs.draft
        self._known: dict[tuple[float, int, float], float] = {}
        self._timed = 0

    def seconds(self, rows: float, context: float = 512, batch: float = 1) -> float:
        key = (rows, int(context) // CONTEXT, batch)
        if key not in self._known:
            self._known[key] = self.costs.seconds(rows, context, batch)
        return self._known[key]

    def observe(self, rows: float, context: float, batch: float, seconds: float) -> None:
        self.costs.observe(rows, context, batch, seconds)
        self._timed += 1
        if self._timed % RENEWED == 0:
            self._known.clear()
