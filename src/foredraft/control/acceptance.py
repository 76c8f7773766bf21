"""What a chooser among drafters remembers: how often each one's drafts were right, by position, here and in general.

A record is pessimistic about nothing and sure of nothing: it starts from a prior, follows all requests, and leans on a
request's own record the more of it there is. Old rounds fade, since text changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

LARGEST = 1e9  # number that counts grow to
DEPTHS = 6  # positions told apart; all further ones share the last


@dataclass(slots=True)
class Survival:
    """P(draft j is right, given that those before it were), with counts that fade."""

    fade: float = 1.0
    hits: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    tries: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    unit: float = 1.0  # what a try counts now; new ones count more instead of old ones less

    def observe(self, drafted: int, accepted: int) -> None:
        """A run of `drafted` tokens of which the first `accepted` were right; those behind the first wrong one tell
        nothing."""
        if drafted <= 0:
            return
        self.unit /= self.fade
        if self.unit > LARGEST:
            self._shrink()
        for j in range(min(drafted, accepted + 1)):
            at = j if j < DEPTHS else DEPTHS - 1
            self.tries[at] += self.unit
            if j < accepted:
                self.hits[at] += self.unit

    def _shrink(self) -> None:
        self.hits = [count / self.unit for count in self.hits]
        self.tries = [count / self.unit for count in self.tries]
        self.unit = 1.0

    def chance(self, j: int, prior: float, weight: float) -> float:
        """Of position j, with a prior that counts as `weight` tries."""
        at = min(j, DEPTHS - 1)
        weight *= self.unit
        return (self.hits[at] + weight * prior) / (self.tries[at] + weight)


@dataclass(slots=True)
class Record:
    """Survival by key (a drafter, and how sure it was), of all requests and of each."""

    everyone_weight: float = 4.0  # tries that the prior is worth
    own_weight: float = 8.0  # tries that the record of all requests is worth against a request's own
    everyone: dict[Hashable, Survival] = field(default_factory=dict)
    own: dict[int, dict[Hashable, Survival]] = field(default_factory=dict)

    def observe(self, request: int, key: Hashable, drafted: int, accepted: int) -> None:
        own = self.own.setdefault(request, {})
        if key not in own:
            own[key] = Survival(0.96)
            self.everyone.setdefault(key, Survival(0.998))
        self.everyone[key].observe(drafted, accepted)
        own[key].observe(drafted, accepted)

    def gains(self, request: int, key: Hashable, length: int, prior: float) -> list[float]:
        """P(draft i is committed) for i = 0 .. length - 1."""
        everyone = self.everyone.get(key, Survival())
        own = self.own.get(request, {}).get(key, Survival())
        found, survive = [], 1.0
        for j in range(length):
            general = everyone.chance(j, prior, self.everyone_weight)
            survive *= own.chance(j, general, self.own_weight)
            found.append(survive)
        return found

    def tries(self, request: int, key: Hashable) -> float:
        """How much a request itself has seen of a key."""
        seen = self.own.get(request, {}).get(key, Survival())
        return seen.tries[0] / seen.unit

    def end(self, request: int) -> None:
        self.own.pop(request, None)


@dataclass(slots=True)
class Yields:
    """Drafts accepted a round, by key (a drafter, and what it had to build on), of all requests; and by how much each
    request departs from them, which its rounds of all keys tell together."""

    prior: float  # of a key that nobody has seen
    everyone_weight: float = 4.0  # rounds that the prior is worth
    own_weight: float = 8.0  # accepted drafts that "like the others" is worth
    everyone: dict[Hashable, Survey] = field(default_factory=dict)
    own: dict[int, Survey] = field(default_factory=dict)

    def expected(self, request: int, key: Hashable) -> float:
        return self._general(key) * self._factor(request)

    def observe(self, request: int, key: Hashable, accepted: int) -> None:
        expected = self._general(key)
        self.own.setdefault(request, Survey(0.96)).observe(accepted, expected)
        self.everyone.setdefault(key, Survey(0.99)).observe(accepted, 1.0)

    def end(self, request: int) -> None:
        self.own.pop(request, None)

    def _general(self, key: Hashable) -> float:
        seen = self.everyone.get(key, Survey())
        return (seen.total + self.everyone_weight * self.prior) / (seen.of + self.everyone_weight)

    def _factor(self, request: int) -> float:
        seen = self.own.get(request, Survey())
        return (seen.total + self.own_weight) / (seen.of + self.own_weight)


@dataclass(slots=True)
class Survey:
    """So much of so much, with old rounds fading."""

    fade: float = 1.0
    total: float = 0.0
    of: float = 0.0

    def observe(self, amount: float, of: float) -> None:
        self.total = self.fade * self.total + amount
        self.of = self.fade * self.of + of
