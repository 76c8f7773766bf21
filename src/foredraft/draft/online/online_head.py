"""A head that learns: what is drafted with now, a copy that learns, and which of them has proved better.

A copy takes over only if it accepts more of the texts that were held out than what is drafted with; where the head that
everything began with is better by now (texts have changed again), that one is taken back. Knows no engine and no files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from threading import Lock

from torch import nn

from .distillation import Distillation, Weights
from .recorder import Heard
from .traffic import Traffic

FAR = 0.05  # a copy whose acceptance is lower by more than this than the first head's starts again from there
PATIENCE = 16  # updates in a row that brought nothing, after which the copy starts again from what is drafted with


@dataclass(slots=True)
class Progress:
    """Figures of one learner so far."""

    updates: int = 0  # times that it has learnt
    steps: int = 0  # of the optimiser
    swaps: int = 0  # times that what it learnt was taken over
    reverts: int = 0  # times that the first head was taken back, or the copy was given up
    loss: float = math.nan  # of the last update
    serving: float = math.nan  # acceptance on the held-out texts, of what is drafted with
    first: float = math.nan  # the same of the head that everything began with

    def as_dict(self) -> dict[str, float | None]:
        return {name: None if value != value else value for name, value in asdict(self).items()}


class OnlineHead:
    """`hear` texts, `update` now and then (on any one thread), `take` the new head between two rounds."""

    def __init__(
        self,
        distillation: Callable[[], Distillation],
        first: Weights,
        rebuild: Callable[[Weights], nn.Module],
        learnt: Weights | None = None,
        margin: float = 0.0,
        epochs: int = 2,
        on_swap: Callable[[Weights, dict[str, float | None]], None] = lambda weights, figures: None,
    ) -> None:
        """`distillation` is made when something is learnt first, by whoever learns: it takes a while. `first`: what
        everything begins with; `learnt`: what an earlier run has come to."""
        self.traffic, self.progress = Traffic(), Progress()
        self._make_copy, self._first, self._rebuild = distillation, first, rebuild
        self._serving = learnt or first
        self._margin, self._epochs, self._vain, self._on_swap = margin, epochs, 0, on_swap
        self._ready = None if learnt is None else rebuild(learnt)
        self._lock = Lock()

    @cached_property
    def _copy(self) -> Distillation:
        made = self._make_copy()
        made.load(self._serving)
        return made

    @property
    def weights(self) -> Weights:
        """Of what is drafted with."""
        return self._serving

    def hear(self, text: Heard) -> None:
        self.traffic.add(text)

    def take(self) -> nn.Module | None:
        """The head to draft with from now on, if it has changed."""
        if self._ready is None:
            return None
        with self._lock:
            ready, self._ready = self._ready, None
        return ready

    def update(self, pause: Callable[[], None] = lambda: None) -> bool:
        """Learn from what was heard; whether other weights are drafted with from now on. `pause`: called often."""
        texts, losses = self.traffic.take(), []
        for _ in range(self._epochs):
            for loss in self._copy.learn(texts):
                losses.append(loss)
                pause()
        if not losses:
            return False
        self.progress.updates += 1
        self.progress.steps += len(losses)
        self.progress.loss = sum(losses) / len(losses)
        return self._decide(self.traffic.held_out(), pause)

    def _decide(self, held_out: list[Heard], pause: Callable[[], None]) -> bool:
        """Whether something else than what is drafted with does better on the held-out texts, and is taken over."""
        learnt = self._copy.weights()
        found = {"serving": self._copy.accepts(self._serving, held_out)}  # named first: it wins a tie
        for name, weights in (("first", self._first), ("learnt", learnt)):
            if weights is not self._serving:
                pause()
                found[name] = self._copy.accepts(weights, held_out)
        self.progress.serving, self.progress.first = found["serving"], found.get("first", found["serving"])
        best = max(found, key=lambda name: found[name] - (0.0 if name == "serving" else self._margin))
        if math.isnan(found["serving"]):  # nothing to judge by
            best = "serving"
        self._vain = 0 if best == "learnt" else self._vain + 1
        self.progress.reverts += best == "first"
        # What was learnt is kept where the first head is but a little better: that may be chance.
        if self._vain >= PATIENCE or (best == "first" and found["learnt"] < found["first"] - FAR):
            self._copy.load(self._first if best == "first" else self._serving)
            self.progress.reverts, self._vain = self.progress.reverts + (best != "first"), 0
        if best == "serving":
            return False
        self.progress.swaps += best == "learnt"
        self.progress.serving = found[best]
        self._take_over(learnt if best == "learnt" else self._first)
        return True

    def revert(self) -> None:
        """Draft with the first head again, and learn on from there."""
        self.progress.reverts += 1
        self._copy.load(self._first)
        self._take_over(self._first)

    def _take_over(self, weights: Weights) -> None:
        made = self._rebuild(weights)
        with self._lock:
            self._serving, self._ready = weights, made
        self._on_swap(weights, self.progress.as_dict())
