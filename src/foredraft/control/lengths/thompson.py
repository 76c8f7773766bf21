"""EESD's control by Thompson sampling: a draw from the posterior of a request's acceptance rate sets the length.

The posterior is a Beta distribution: every accepted draft is a success, the first rejected one a failure, and those
after it count for nothing. Old rounds fade towards the prior. The random numbers are the rule's own: a hash of its seed
and the request's count of rounds, the same for every request, so that a text depends on neither its id nor its batch
mates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core.rng.hashing import hashed_uniform, uniform_of
from ...core.rng.keyed import Purpose
from ...core.shapes.step import Step
from ...core.shapes.stops import confidence_of
from ...errors import UsageError
from ..objective import best_count


@dataclass(frozen=True, slots=True)
class Belief:
    """Beta(passed, failed) over the acceptance rate of a request."""

    passed: float = 4.0
    failed: float = 2.0
    rounds: int = 0

    def __post_init__(self) -> None:
        if self.passed <= 0 or self.failed <= 0:
            raise UsageError("Thompson sampling begins with some drafts passed and some failed, both above 0")

    @property
    def mean(self) -> float:
        return self.passed / (self.passed + self.failed)


@dataclass
class Thompson:
    """EESD's plain form: after every token a rate is drawn from the posterior, and a coin of that rate says `go on`.

    The rate is drawn again each time, so the coin has the posterior's mean; none of it looks at a token, so all coins
    of a round can be tossed before it. The length is geometric: a mixture of fixed lengths that ignores costs, which on
    steady text cannot be faster than the best of them. `CostThompson` is the form to use.
    """

    prior: Belief = Belief()
    keep: float = 0.98  # factor on earlier rounds after each round
    seed: int = 0
    _beliefs: dict[int, Belief] = field(default_factory=dict, init=False, repr=False)

    def belief(self, id: int) -> Belief:
        return self._beliefs.get(id, self.prior)

    def longest(self, id: int, limit: int) -> int:
        belief, length = self.belief(id), 1
        while length < limit and self._uniform(belief.rounds, length) < belief.mean:
            length += 1
        return min(length, limit)

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        belief = self.belief(id)
        self._beliefs[id] = Belief(
            self._faded(belief.passed, self.prior.passed) + accepted,
            self._faded(belief.failed, self.prior.failed) + (accepted < drafted),
            belief.rounds + 1,
        )

    def end(self, id: int) -> None:
        self._beliefs.pop(id, None)

    def _faded(self, count: float, prior: float) -> float:
        return prior + self.keep * (count - prior)

    def _uniform(self, round: int, draw: int) -> float:
        return uniform_of(self.seed, round, draw, int(Purpose.POLICY), 0)


@dataclass
class CostThompson(Thompson):
    """Thompson sampling over lengths: one rate is drawn a round, and the fastest length at that rate is drafted.

    Each length is tried as often as it is believed to be the best, so an uncertain request explores and a well-known
    one does not. `seconds` is a round's time by the number of drafts.
    """

    seconds: Callable[[int], float] = field(kw_only=True)

    def longest(self, id: int, limit: int) -> int:
        from scipy.special import betaincinv  # heavy to import, and only needed here

        belief = self.belief(id)
        rate = float(betaincinv(belief.passed, belief.failed, self._uniform(belief.rounds, 0)))
        return best_count([rate**i for i in range(1, limit + 1)], self.seconds)[0]


@dataclass(frozen=True)
class Logistic:
    """A calibrated confidence: sigmoid(slope * logit(confidence) + shift), fitted to what was accepted."""

    slope: float = 1.0
    shift: float = 0.0

    def __call__(self, confidence: Tensor) -> Tensor:
        return torch.sigmoid(self.slope * torch.logit(confidence, eps=1e-6) + self.shift)


@dataclass
class CalibratedThompson(Thompson):
    """EESD's Cali-TS in its Beta form, a stop rule: the coin after a token also weighs the drafter's confidence in it.

    rate ~ Beta(passed + weight * mu, failed + weight * (1 - mu)), mu = calibrate(top probability of the distribution)
    """

    calibrate: Callable[[Tensor], Tensor] = field(default=Logistic(), kw_only=True)  # [B] -> [B] P(accepted)
    weight: float = field(default=4.0, kw_only=True)

    def longest(self, id: int, limit: int) -> int:
        return limit

    def begin(self, ids: Sequence[int], device: torch.device) -> Tensor:
        beliefs = [self.belief(id) for id in ids]
        return torch.tensor([[b.passed, b.failed, b.rounds] for b in beliefs], dtype=torch.float32, device=device)

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        passed, failed, rounds = state.unbind(dim=1)
        mean = (passed + self.weight * self.calibrate(confidence_of(step))) / (passed + failed + self.weight)
        round, draw = rounds.to(torch.int64), torch.full_like(rounds, depth + 1, dtype=torch.int64)
        uniform = hashed_uniform(torch.full_like(round, self.seed), round, draw, int(Purpose.POLICY), 0)
        return state, uniform < mean
