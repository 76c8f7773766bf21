"""Whether a look-up is worth its time: what it finds beyond cheaper ones, against the seconds that it takes.

Expected tokens beyond what cheaper look-ups found, times the seconds of a plain step, must reach the seconds of the
look-up; otherwise it rests, try and double. Known per request, with all requests as the prior.
"""

from __future__ import annotations

from collections.abc import Mapping

from .acceptance import FadingCounts
from .backoff import Backoff
from .constants import (
    EMA_RATE,
    FADE_ALL,
    FADE_REQUEST,
    LOOKUP_EXTRA,
    LOOKUP_FREE,
    LOOKUP_LONGEST,
    LOOKUP_REST,
    WEIGHT_ALL,
    WEIGHT_REQUEST,
)


class LookupWorth:
    """Look-ups are numbered; requests have ids."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._all: dict[int, FadingCounts] = {}
        self._own: dict[tuple[int, int], FadingCounts] = {}
        self._rests: dict[tuple[int, int], Backoff] = {}

    def seconds(self, lookup: int) -> float:
        return self._seconds.get(lookup, 0.0)

    def extra(self, request: int, lookup: int) -> float:
        """Tokens that it is expected to find beyond cheaper ones."""
        everyone = self._all.get(lookup, FadingCounts()).mean(LOOKUP_EXTRA, WEIGHT_ALL)
        return self._own.get((request, lookup), FadingCounts()).mean(everyone, WEIGHT_REQUEST)

    def asks(self, request: int, lookup: int, step_seconds: float) -> bool:
        """Whether to look up in this round. One that does not pay is asked now and then, since text changes."""
        took = self.seconds(lookup)
        if took <= LOOKUP_FREE * step_seconds:
            return True
        rest = self._rests.setdefault((request, lookup), Backoff(LOOKUP_REST, LOOKUP_LONGEST))
        if rest.runs():
            return False
        if self.extra(request, lookup) * step_seconds >= took:
            rest.reset()
        else:
            rest.start()
        return True

    def took(self, lookup: int, seconds: float) -> None:
        """For one sequence."""
        known = self._seconds.setdefault(lookup, seconds)
        self._seconds[lookup] += EMA_RATE * (min(seconds, 4 * known if known else seconds) - known)

    def observe(self, request: int, right: Mapping[int, int]) -> None:
        """Tokens of each look-up of a round that were right; the cheapest counts in full, others by what is more."""
        best = 0
        for lookup in sorted(right, key=self.seconds):
            more = max(0, right[lookup] - best)
            best = max(best, right[lookup])
            self._all.setdefault(lookup, FadingCounts(FADE_ALL)).add(more, 1.0)
            self._own.setdefault((request, lookup), FadingCounts(FADE_REQUEST)).add(more, 1.0)

    def end(self, request: int) -> None:
        self._own = {key: counts for key, counts in self._own.items() if key[0] != request}
        self._rests = {key: rest for key, rest in self._rests.items() if key[0] != request}
