"""A canary for lossy rules: a share of the answers is written again by the exact rule, and the two are compared.

The second writing is the server's own business: it begins when no client waits for a slot, gives its slot back as soon
as one does, and nobody but the operator hears of it. Where the final answers of more pairs differ than the budget
allows, by a test at 95%, the server falls back: from then on lossy requests get the exact rule.

Lives on the engine's thread. Greedy requests alone are compared: sampled texts differ by chance.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ...engine import Request
from ...judge.fit.false_accepts import lower_bound
from ...judge.problems.final_answer import number, phrase
from ...recipes import LLM
from ...types import Event
from ..metrics import Metrics
from .methods import ServedMethods

log = logging.getLogger("foredraft.serve")
MOST_WAITING = 16  # answers to be written again; what comes while so many wait is not compared
WINDOW = 200  # the latest pairs that are counted
SURE = 0.95


@dataclass(slots=True, eq=False)
class Pair:
    """An answer, and the request that writes it again."""

    output: list[int]
    again: Request


class Canary:
    """Compares finished answers with those of the exact rule, one at a time."""

    def __init__(self, llm: LLM, methods: ServedMethods, metrics: Metrics, share: float, budget: float) -> None:
        self._llm, self._methods, self._metrics, self._share, self._budget = llm, methods, metrics, share, budget
        self._owed = 0.0  # answers that are due by the share, less those that were taken
        self._waiting: deque[Pair] = deque()
        self._running: Pair | None = None
        self._flips: deque[bool] = deque(maxlen=WINDOW)

    @property
    def idle(self) -> bool:
        return not self._waiting and self._running is None

    def consider(self, request: Request) -> None:
        """A client's answer is complete; perhaps it is compared."""
        comparable = not request.method.exact and request.method.drafter is not None and request.constraint is None
        if not comparable or request.sequence.params.temperature != 0:
            return
        self._owed = min(self._owed + self._share, 2.0)
        if self._owed < 1 or len(self._waiting) >= MOST_WAITING:
            return
        self._owed -= 1
        sequence = request.sequence
        again = self._llm.request(
            sequence.tokens[: sequence.prompt_length], sequence.params, self._methods.exact(request.method)
        )
        again.sequence.namespace, again.sequence.adapter = sequence.namespace, sequence.adapter
        self._waiting.append(Pair(sequence.output, again))

    def begin(self) -> None:
        """There is a slot that nobody wants."""
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._llm.engine.add(self._running.again)

    def make_room(self) -> None:
        """A client waits, or something has failed: what is being written is given up."""
        if self._running is not None:
            pair, self._running = self._running, None
            self._llm.engine.cancel(pair.again)

    def hear(self, event: Event) -> None:
        """Something was written for nobody; at its end it is compared."""
        pair = self._running
        if pair is None or event.request_id != pair.again.id or event.finish_reason is None:
            return
        self._running = None
        if event.finish_reason in ("stop", "length"):
            self._compare(pair.output, pair.again.sequence.output)

    def _compare(self, lossy: list[int], exact: list[int]) -> None:
        decode = self._llm.tokenizer.decode
        flipped = lossy != exact and final(decode(lossy)) != final(decode(exact))
        self._flips.append(flipped)
        self._metrics.canary_flips.inc(flipped)
        self._metrics.canary_drift.observe(drift(lossy, exact))
        flips, count = sum(self._flips), len(self._flips)
        if not self._methods.exact_only and lower_bound(flips, count, SURE) > self._budget:
            log.warning(
                "canary: %d of the last %d answers ended otherwise than by the exact rule, more than %.1f%%; lossy "
                "rules are switched off until the server starts again", flips, count, 100 * self._budget,
            )  # fmt: skip
            self._methods.exact_only = True
            self._metrics.canary_fallback.set(1)
        self._metrics.canary_compared.inc()  # last: whoever sees it sees what followed


def final(text: str) -> str | None:
    """What an answer comes to: its final number, or where it has none its last words."""
    return number(text) or phrase(text)


def drift(one: Sequence[int], other: Sequence[int]) -> float:
    """The share of a text after the place where two writings part: 0 = they are equal."""
    longest = max(len(one), len(other))
    alike = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return 1 - alike / longest if longest else 0.0
