"""How often drafts were accepted, of all requests and of each: the one estimate that every chooser uses.

It starts from a prior, follows all requests, and relies on a request's own rounds the more of them there are. Old
rounds fade, since text changes. `calibration` is another quantity: it maps the probability that a drafter gives to one
token to the probability that this token is accepted, which counts by position cannot know.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from .constants import FADE_ALL, FADE_REQUEST, FADE_TREES, POSITIONS, TREE_PRIOR, WEIGHT_ALL, WEIGHT_REQUEST

_TREES = "trees"  # key of a request's own rounds with trees, whatever drafted them


@dataclass(slots=True)
class FadingCounts:
    """Hits and tries by position; every observation multiplies the earlier ones by `fade`."""

    fade: float = 1.0
    hits: list[float] = field(default_factory=lambda: [0.0] * POSITIONS)
    tries: list[float] = field(default_factory=lambda: [0.0] * POSITIONS)

    def observe(self, drafted: int, accepted: int) -> None:
        """A chain of `drafted` tokens of which the first `accepted` were right; after the first wrong one nothing is
        known."""
        if drafted <= 0:
            return
        self._fade()
        for j in range(min(drafted, accepted + 1)):
            at = min(j, POSITIONS - 1)
            self.tries[at] += 1.0
            self.hits[at] += j < accepted

    def add(self, hits: float, tries: float) -> None:
        """Of one round as a whole, kept at the first position."""
        self._fade()
        self.hits[0] += hits
        self.tries[0] += tries

    def mean(self, prior: float, weight: float, position: int = 0) -> float:
        """Hits over tries, with a prior that counts as `weight` tries."""
        at = min(position, POSITIONS - 1)
        return (self.hits[at] + weight * prior) / (self.tries[at] + weight)

    def _fade(self) -> None:
        if self.fade < 1.0:
            self.hits = [self.fade * count for count in self.hits]
            self.tries = [self.fade * count for count in self.tries]


@dataclass(slots=True)
class AcceptanceRecord:
    """Counts by key (a drafter, and how confident it was), of all requests and of each."""

    everyone: dict[Hashable, FadingCounts] = field(default_factory=dict)
    own: dict[int, dict[Hashable, FadingCounts]] = field(default_factory=dict)

    def observe(self, request: int, key: Hashable, drafted: int, accepted: int) -> None:
        """A verified chain."""
        self.everyone.setdefault(key, FadingCounts(FADE_ALL)).observe(drafted, accepted)
        self._own(request, key).observe(drafted, accepted)

    def gains(self, request: int, key: Hashable, length: int, prior: float) -> list[float]:
        """P(draft i of a chain is accepted) for i = 0 .. length - 1."""
        everyone = self.everyone.get(key, FadingCounts())
        own = self.own.get(request, {}).get(key, FadingCounts())
        found, survival = [], 1.0
        for j in range(length):
            survival *= own.mean(everyone.mean(prior, WEIGHT_ALL, j), WEIGHT_REQUEST, j)
            found.append(survival)
        return found

    def observe_tree(self, request: int, key: Hashable, accepted: int) -> None:
        """A verified tree. A request departs from the others by one factor for all keys."""
        self._own(request, _TREES).add(accepted, self._tree_mean(key))
        self.everyone.setdefault(key, FadingCounts(FADE_TREES)).add(accepted, 1.0)

    def accepted_of_tree(self, request: int, key: Hashable) -> float:
        """Drafts of a tree that are expected to be accepted."""
        own = self.own.get(request, {}).get(_TREES, FadingCounts())
        return self._tree_mean(key) * own.mean(1.0, WEIGHT_REQUEST)

    def end(self, request: int) -> None:
        self.own.pop(request, None)

    def _own(self, request: int, key: Hashable) -> FadingCounts:
        return self.own.setdefault(request, {}).setdefault(key, FadingCounts(FADE_REQUEST))

    def _tree_mean(self, key: Hashable) -> float:
        return self.everyone.get(key, FadingCounts()).mean(TREE_PRIOR, WEIGHT_ALL)
