"""Evidence that texts do not follow the target: test martingales that may be looked at as often as one likes.

Under the null every emitted token is a draw from the target's distribution given its own prefix. A *view* puts tokens
into cells whose null probabilities are known; the Bayes factor of "some distribution near the target's" (Dirichlet with
mean p) against "the target's distribution" then has mean one at any time, and so has any average of such factors. By
Ville's inequality it ever reaches 1 / alpha with probability at most alpha: no schedule of looks has to be agreed on
beforehand.

Views: `tokens` keeps a table per prefix and finds any shift among likely tokens; `ranks` and `copies` pool all prefixes
through the randomised probability integral transform, with tokens in the order of their probability, or with those
first that occur in the context already, and find what is wrong everywhere in the same direction.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln, logsumexp

from ..enumerate.table_model import Array
from .cells import CellDistribution, Token

KAPPAS = (16.0, 256.0, 4096.0)  # prior sizes: large shifts, small ones, and small ones in many cells
BINS = 8
VIEWS = ("tokens", "ranks", "copies")
_MANY = 30  # observations after a prefix from which on its own shift is worth an estimate


def log_bayes(counts: Array, mass: Array, kappa: float) -> Array:
    """log of the factor for counts [.., cells] under Dirichlet(kappa * mass) against mass itself."""
    prior, total = kappa * mass, counts.sum(axis=-1)
    gain = gammaln(prior + counts) - gammaln(prior) - counts * np.log(mass)
    return np.asarray(gain.sum(axis=-1) + gammaln(kappa) - gammaln(kappa + total))


def log_mean(values: Array) -> float:
    """log of the mean of exp(values)."""
    return float(logsumexp(values) - np.log(values.size))


@dataclass(slots=True)
class View:
    """Counts per key, each key with the null distribution of its cells."""

    mass: dict[Hashable, Array] = field(default_factory=dict)
    counts: dict[Hashable, Array] = field(default_factory=dict)

    def add(self, key: Hashable, mass: Array, counts: Array) -> None:
        if key not in self.mass:
            self.mass[key], self.counts[key] = mass, np.zeros(mass.size)
        self.counts[key] += counts

    def log_e(self) -> float:
        """log of the evidence: the product over keys, averaged over the prior sizes."""
        seen = [key for key, counts in self.counts.items() if counts.sum() > 1]  # a first token is no evidence
        per_size = [sum(float(log_bayes(self.counts[k], self.mass[k], kappa)) for k in seen) for kappa in KAPPAS]
        return log_mean(np.array(per_size))

    def shift(self) -> tuple[float, float]:
        """(total variation seen, what chance alone would show), averaged over keys with enough tokens."""
        keys = [key for key, counts in self.counts.items() if counts.sum() >= _MANY]
        if not keys:
            return 0.0, 0.0
        size = np.array([self.counts[key].sum() for key in keys])
        seen = [np.abs(self.counts[k] / n - self.mass[k]).sum() / 2 for k, n in zip(keys, size, strict=True)]
        noise = [chance_shift(self.mass[k], n) for k, n in zip(keys, size, strict=True)]
        return float(np.average(seen, weights=size)), float(np.average(noise, weights=size))


def chance_shift(mass: Array, count: float) -> float:
    """Mean total variation between `mass` and the frequencies of `count` draws from it (normal approximation)."""
    return float(np.sqrt(2 * mass * (1 - mass) / (np.pi * count)).sum() / 2)


@dataclass(slots=True)
class Evidence:
    """What the texts say so far, position by position. All positions together raise false alarms at rate `alpha`."""

    tokens: int  # positions
    alpha: float
    rng: np.random.Generator
    views: list[dict[str, View]] = field(init=False)

    def __post_init__(self) -> None:
        self.views = [{name: View() for name in VIEWS} for _ in range(self.tokens)]

    @property
    def threshold(self) -> float:
        """log evidence that a position must reach: alpha is shared equally by the positions."""
        return float(np.log(self.tokens / self.alpha))

    def add(
        self,
        position: int,
        key: Hashable,
        distribution: CellDistribution,
        context: Collection[Token],
        seen: Mapping[Token, int],
    ) -> None:
        """Tokens that followed one prefix, with their counts."""
        counts = np.zeros(distribution.mass.size)
        for token, times in seen.items():
            counts[distribution.cell(token)] += times
        here = self.views[position]
        here["tokens"].add(key, distribution.mass, counts)
        copied = np.array([token not in context for token in distribution.tokens] + [True])
        for name, order in (("ranks", np.arange(copied.size)), ("copies", np.argsort(copied, kind="stable"))):
            here[name].add(name, np.full(BINS, 1 / BINS), self._transform(counts[order], distribution.mass[order]))

    def _transform(self, counts: Array, mass: Array) -> Array:
        """[BINS] the randomised integral transform of counted cells: uniform under the null."""
        high = np.cumsum(mass)
        edges = np.linspace(0.0, 1.0, BINS + 1)
        bins = np.zeros(BINS)
        for cell in np.flatnonzero(counts):
            part = np.clip(np.minimum(high[cell], edges[1:]) - np.maximum(high[cell] - mass[cell], edges[:-1]), 0, None)
            bins += self.rng.multinomial(int(counts[cell]), part / part.sum())
        return bins

    def log_e(self, position: int) -> float:
        """log evidence at a position: the average over the views."""
        return log_mean(np.array([view.log_e() for view in self.views[position].values()]))

    def shift(self, position: int) -> tuple[str, float, float]:
        """(view, total variation seen, chance level) of the view that says most at a position.

        A view whose tokens are spread over too many prefixes to tell a size leaves the telling to the next.
        """
        here = self.views[position]
        order = sorted(VIEWS, key=lambda each: here[each].log_e(), reverse=True)
        found = [(name, *here[name].shift()) for name in order]
        return next((each for each in found if each[2] > 0), found[0])
