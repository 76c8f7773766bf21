"""Language models that are tables: a distribution for every prefix, computed on first sight and then fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class TableModel:
    """A next-token distribution for every prefix. `compute` must be a function of the prefix alone."""

    vocab: int
    compute: Callable[[Prefix], Array]
    _known: dict[Prefix, Array] = field(default_factory=dict, repr=False)
    _logs: dict[Prefix, Array] = field(default_factory=dict, repr=False)

    def next_distribution(self, prefix: Sequence[int] = ()) -> Array:
        key = tuple(prefix)
        if key not in self._known:
            self._known[key] = self.compute(key)
        return self._known[key]

    def logits(self, prefix: Prefix) -> Array:
        """Logarithms of the next distribution."""
        if prefix not in self._logs:
            with np.errstate(divide="ignore"):
                self._logs[prefix] = np.log(self.next_distribution(prefix))
        return self._logs[prefix]

    def joint(self, length: int, prefix: Prefix = ()) -> Array:
        """Distribution of the next `length` tokens, one axis per token."""
        if length == 0:
            return np.ones(())
        distribution = self.next_distribution(prefix)
        return np.stack([distribution[v] * self.joint(length - 1, (*prefix, v)) for v in range(self.vocab)])


def dirichlet(vocab: int, seed: int, alpha: float = 1.0, support: int | None = None) -> TableModel:
    """Random distributions; small `alpha` makes peaked ones, `support` is the number of possible tokens per prefix."""

    def compute(prefix: Prefix) -> Array:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        distribution = rng.dirichlet(np.full(vocab, alpha))
        if support is not None:
            distribution[rng.permutation(vocab)[support:]] = 0.0
        distribution = np.maximum(distribution, 0.0)
        return np.asarray(distribution / distribution.sum())

    return TableModel(vocab, compute)


def fixed(distribution: Sequence[float]) -> TableModel:
    """The same distribution whatever came before."""
    array = np.array(distribution)
    return TableModel(len(distribution), lambda prefix: array)


def rotated(distribution: Sequence[float]) -> TableModel:
    """`distribution` shifted to the right by the sum of the prefix: the context-dependent golden vector G3."""
    array = np.array(distribution)
    return TableModel(len(distribution), lambda prefix: np.roll(array, sum(prefix) % len(distribution)))


def mixed(first: TableModel, second: TableModel, share: float) -> TableModel:
    """`share` of the first model's distributions and the rest of the second's: a target that resembles its drafter."""

    def compute(prefix: Prefix) -> Array:
        return share * first.next_distribution(prefix) + (1 - share) * second.next_distribution(prefix)

    return TableModel(first.vocab, compute)


def continued(model: TableModel, text: Sequence[int], reach: int = 2) -> TableModel:
    """The same model after `text`, of which it remembers the last `reach` tokens."""
    return TableModel(model.vocab, lambda prefix: model.next_distribution((*text, *prefix)[-reach:]))


def at_temperature_zero(model: TableModel) -> TableModel:
    """The point mass at the argmax of another model's distributions."""

    def compute(prefix: Prefix) -> Array:
        distribution = np.zeros(model.vocab)
        distribution[model.next_distribution(prefix).argmax()] = 1.0
        return distribution

    return TableModel(model.vocab, compute)


# Golden vectors of the verification spec, section 0.7.
G1_TARGET, G1_DRAFT = fixed((0.40, 0.30, 0.15, 0.10, 0.05)), fixed((0.10, 0.25, 0.35, 0.05, 0.25))
G2_TARGET, G2_DRAFT = fixed((1 / 3, 2 / 3)), fixed((2 / 3, 1 / 3))
G3_TARGET, G3_DRAFT = rotated((0.45, 0.30, 0.15, 0.10)), rotated((0.15, 0.20, 0.35, 0.30))
