"""Rules that go by a request's acceptance so far: the length with most expected tokens per second, or the expected one.

    expected   argmax_k  (1 + S_1 + .. + S_k) / seconds(k)
    predicted  S_1 + .. + S_limit, rounded

S_i is the probability that the first i drafts are all accepted, estimated from the request's own rounds and, where
these are few, from those of all requests. seconds(k) is a round that drafts k tokens: k draft steps and a verification
of k + 1 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..acceptance import AcceptanceRecord
from ..constants import ACCEPTANCE_PRIOR, LENGTH_RETRY
from ..objective import best_count

KEY = 0  # one drafter, so one key


@dataclass
class _Estimated:
    """A request that drafts nothing tries one token every `probe` rounds, since text changes."""

    prior: float = ACCEPTANCE_PRIOR  # acceptance of a draft before anything is known
    probe: int = LENGTH_RETRY
    record: AcceptanceRecord = field(default_factory=AcceptanceRecord)
    _idle: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # rounds since the last draft

    def longest(self, id: int, limit: int) -> int:
        length = self._length(self.record.gains(id, KEY, limit, self.prior))
        due = self._idle.get(id, 0) >= self.probe - 1
        return min(limit, max(length, int(due)))

    def _length(self, gains: Sequence[float]) -> int:
        raise NotImplementedError

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        self._idle[id] = 0 if drafted else self._idle.get(id, 0) + 1
        self.record.observe(id, KEY, drafted, accepted)

    def end(self, id: int) -> None:
        self._idle.pop(id, None)
        self.record.end(id)


@dataclass
class Expected(_Estimated):
    """The length with most expected tokens per second; 0 where plain decoding is faster."""

    seconds: Callable[[int], float] = field(kw_only=True)

    def _length(self, gains: Sequence[float]) -> int:
        return best_count(gains, self.seconds)[0]


@dataclass
class ExpectedAccepted(_Estimated):
    """As many as will be accepted in the mean: AdaEAGLE's rule with the acceptance so far as its predictor."""

    def _length(self, gains: Sequence[float]) -> int:
        return round(sum(gains))
