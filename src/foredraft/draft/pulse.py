"""Whether drafting pays by the clock, where prices cannot tell: a pass may be so quick that the host's own work counts.

Rounds that draft and rounds that do not even look take turns, and whichever wrote more tokens per second gets the
longer turn next time. The better kind soon has nearly all rounds; the other is tried again now and then, since texts,
machines and recorded functions change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL, SAMPLE = 16, 4  # rounds of drafting, and of plain decoding, that a comparison needs
MOST = (256, 512)  # rounds of each at a stretch


@dataclass(slots=True)
class Stretch:
    """Some rounds of one kind."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class Pulse:
    """The turns of one sequence after another."""

    spans: tuple[int, int] = (TRIAL, SAMPLE)  # rounds of drafting and of plain decoding in a cycle
    resting: bool = False
    left: int = TRIAL  # rounds of the present kind
    last: float | None = None  # when the last round began; None = a new sequence begins
    found: list[Stretch] = field(default_factory=lambda: [Stretch(), Stretch()])

    def rests(self, now: float, wrote: int) -> bool:
        """Whether this round is to be plain. The one before has written so many tokens, 0 = it was another's."""
        if self.last is not None and wrote > 0:
            own = self.found[self.resting]
            own.tokens, own.seconds = own.tokens + wrote, own.seconds + now - self.last
        self.last = now
        if self.left == 0:
            self._change()
        self.left -= 1
        return self.resting

    def _change(self) -> None:
        drafting, plain = self.found
        if self.resting and drafting.rate > plain.rate:
            self.spans = min(2 * self.spans[0], MOST[0]), SAMPLE
        elif self.resting:
            self.spans = TRIAL, min(2 * self.spans[1], MOST[1])
        self.resting = not self.resting
        self.left, self.found[self.resting] = self.spans[self.resting], Stretch()
