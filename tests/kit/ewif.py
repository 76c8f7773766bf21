"""What a cascade of drafters gains, before it is built: the expected walltime improvement factor (EWIF) of CS-Drafting.

All factors are tokens per target pass, with costs in target passes. Acceptance counts as independent of the position.
One plan covers all arrangements: n reviews by a drafter, each over k tokens of a cheaper one, then m more tokens of the
cheaper one after them. With k = m = 0 it is a plain chain of n tokens, with m = 0 a vertical and with k = 0 a
horizontal cascade.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Rates:
    """Two drafters as measured: who accepts how much of whom, and what a token or a pass costs."""

    good: float  # acceptance of the better drafter's tokens by the target
    cheap: float  # acceptance of the cheaper one's tokens by the target
    reviewed: float  # acceptance of the cheaper one's tokens by the better one
    good_cost: float  # one pass of the better drafter
    cheap_cost: float = 0.0  # one token of the cheaper one


@dataclass(frozen=True, slots=True)
class Plan:
    """How many tokens come from whom in one round."""

    reviews: int  # passes of the better drafter
    per_review: int = 0  # tokens of the cheaper one that each pass looks at
    then: int = 0  # tokens of the cheaper one after the reviewed ones


def run(acceptance: float, length: int) -> float:
    """1 + a + .. + a^length: tokens that a chain of this length yields, the target's own included."""
    return sum(acceptance**i for i in range(length + 1))


def phi(z: float, reviewed: float, per_review: int) -> float:
    """Generating function of the tokens that one review yields: 1 + (z - 1) sum_{i <= k} (a' z)^i."""
    return 1 + (z - 1) * run(reviewed * z, per_review)


def tokens(rates: Rates, plan: Plan) -> float:
    """Expected tokens of one round.

    N reviewed tokens yield (1 - a^(N+1)) / (1 - a) in the mean over N, and E[a^N] = phi(a)^n is also the chance that
    all of them are accepted, so that the tokens after them count.
    """
    stand = phi(rates.good, rates.reviewed, plan.per_review) ** plan.reviews
    if rates.good < 1:
        reviewed = (1 - rates.good * stand) / (1 - rates.good)
    else:  # the limit: every reviewed token stands
        reviewed = 1 + plan.reviews * run(rates.reviewed, plan.per_review)
    return reviewed + stand * (run(rates.cheap, plan.then) - 1)


def cost(rates: Rates, plan: Plan) -> float:
    """Target passes that one round is worth, the verifying one included."""
    cheap = plan.reviews * plan.per_review + plan.then
    return 1 + plan.reviews * rates.good_cost + cheap * rates.cheap_cost


def factor(rates: Rates, plan: Plan) -> float:
    """EWIF of a plan; 1 = plain decoding."""
    return tokens(rates, plan) / cost(rates, plan)


def chain(acceptance: float, length: int, price: float) -> float:
    """EWIF of a plain chain: (1 - a^(g+1)) / ((1 - a)(1 + g c))."""
    return run(acceptance, length) / (1 + length * price)


def horizontal(positions: Seq[tuple[float, float]]) -> float:
    """EWIF of a chain whose positions come from drafters of different (acceptance, cost), the first position first."""
    stand, total, price = 1.0, 1.0, 1.0
    for acceptance, each in positions:
        stand *= acceptance
        total += stand
        price += each
    return total / price


def choose(rates: Rates, reviews: int = 12, per_review: int = 10, then: int = 12) -> Plan:
    """The best plan up to these sizes, by trying them all; of equal ones the one with the fewest reviews."""
    sizes = product(range(reviews + 1), range(per_review + 1), range(then + 1))
    return max((Plan(*size) for size in sizes if size[0] or not size[1]), key=lambda plan: factor(rates, plan))
