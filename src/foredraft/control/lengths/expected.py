"""The cost-model rule: draft the length that promises most tokens per second on this machine.

    longest = argmax_k  (1 + S_1 + .. + S_k) / times(k)

S_i is the chance that the first i drafts all stand, as the request's own record tells it, leaning on the record of all
requests where its own is short; times(k) are the seconds of a round that drafts k: k draft steps and a verification of
k + 1 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..acceptance import Record
from ..cost import best_count

KEY = 0  # there is one drafter, so its record has one entry


@dataclass
class Expected:
    """A request that drafts nothing, because drafts do not pay, tries one token every `probe` rounds: text changes."""

    times: Callable[[int], float]
    prior: float = 0.6  # chance of a draft before anything is known
    probe: int = 16
    record: Record = field(default_factory=Record)
    _idle: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # rounds without drafts so far

    def longest(self, id: int, limit: int) -> int:
        length, _ = best_count(self.record.gains(id, KEY, limit, self.prior), self.times)
        due = self._idle.get(id, 0) >= self.probe - 1
        return min(limit, max(length, int(due)))

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        self._idle[id] = 0 if drafted else self._idle.get(id, 0) + 1
        self.record.observe(id, KEY, drafted, accepted)

    def end(self, id: int) -> None:
        self._idle.pop(id, None)
        self.record.end(id)
