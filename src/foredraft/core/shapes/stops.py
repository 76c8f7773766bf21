"""Rules that end a draft chain early. They see draft distributions and draft states only, never a draw of the verifier.

A rule acts before a draw, on what is known by then: the token that a distribution yields is verified in any case, and
the rule decides whether another is drawn after it (DESIGN invariant 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .step import Step


class _FromOne:
    """What the rules share: a chain starts with confidence one."""

    def begin(self, ids: Sequence[int], device: torch.device) -> Tensor:
        return torch.ones(len(ids), device=device)


def confidence_of(step: Step) -> Tensor:
    """[B] the largest probability of the distribution that a chain's next token is drawn from, at temperature 1."""
    best, _ = step.top(1)
    return best[:, 0, 0].exp()


def entropy_of(step: Step) -> Tensor:
    """[B] the entropy of that distribution in nats."""
    return torch.special.entr(torch.softmax(step.logits[step.rows[:, 0]].to(torch.float32), dim=1)).sum(dim=1)


@dataclass(frozen=True)
class Confidence(_FromOne):
    """Stop after a token whose top probability is below the threshold (Kangaroo)."""

    threshold: float = 0.6

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        confidence = confidence_of(step)
        return confidence, confidence >= self.threshold


@dataclass(frozen=True)
class PathConfidence(_FromOne):
    """Stop when the product of top probabilities along the chain is below the threshold.

    With a calibration it is SpecDec++'s rule for drafters without a head, and includes the newest token too.
    """

    threshold: float = 0.3
    calibrate: Callable[[Tensor], Tensor] | None = None  # [B] confidences -> [B] chances of acceptance

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        confidence = confidence_of(step)
        state = state * (confidence if self.calibrate is None else self.calibrate(confidence))
        return state, state >= self.threshold


@dataclass(frozen=True)
class Entropy(_FromOne):
    """Stop after a token whose distribution has more than `threshold` nats of entropy."""

    threshold: float = 1.5

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        return state, entropy_of(step) <= self.threshold


@dataclass(frozen=True)
class PredictedRejection(_FromOne):
    """Stop when a trained head gives some token so far a rejection probability above the threshold (SpecDec++).

    The head reads the draft model's state after a drafted token; the token that this state yields is kept too.
    """

    accept: Callable[[Tensor], Tensor]  # [B, d] draft states -> [B] logits of acceptance of the tokens read
    threshold: float = 0.5

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        if depth > 0:  # at the root the state is that of the pending token, which is certain
            assert step.hidden is not None
            state = state * torch.sigmoid(self.accept(step.hidden[step.rows[:, 0]]))
        return state, 1 - state <= self.threshold


@dataclass(slots=True)
class _Exit:
    """The state of one request of `AdaptiveConfidence`."""

    threshold: float
    rate: float  # running share of accepted drafts
    limit: int = 0  # what it might have drafted this round


@dataclass
class AdaptiveConfidence:
    """Confidence whose threshold follows each request's acceptance rate to `goal` (Draft & Verify).

    Both a stop rule and a length rule: give the same object to the chain and to the drafter whose lengths it controls.
    A draft that was as long as allowed says nothing against the threshold, which then does not fall.
    """

    goal: float = 0.9
    first: float = 0.6
    step: float = 0.01
    rate_inertia: float = 0.5
    inertia: float = 0.9
    _exits: dict[int, _Exit] = field(default_factory=dict, init=False, repr=False)

    def longest(self, id: int, limit: int) -> int:
        self._exit(id).limit = limit
        return limit

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        exit = self._exit(id)
        exit.rate = self.rate_inertia * exit.rate + (1 - self.rate_inertia) * accepted / drafted
        if exit.rate <= self.goal:
            wanted = exit.threshold + self.step
        else:
            wanted = exit.threshold - self.step * (drafted < exit.limit)
        moved = self.inertia * exit.threshold + (1 - self.inertia) * wanted
        exit.threshold = min(max(moved, 0.0), 1.0)  # beyond these it would only take longer to come back

    def end(self, id: int) -> None:
        self._exits.pop(id, None)

    def begin(self, ids: Sequence[int], device: torch.device) -> Tensor:
        thresholds = [self._exits[id].threshold if id in self._exits else self.first for id in ids]
        return torch.tensor(thresholds, dtype=torch.float32, device=device)

    def go_on(self, state: Tensor, step: Step, depth: int) -> tuple[Tensor, Tensor]:
        return state, confidence_of(step) >= state

    def _exit(self, id: int) -> _Exit:
        return self._exits.setdefault(id, _Exit(self.first, self.goal))
