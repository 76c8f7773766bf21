"""Whether drafting pays by the clock, where prices cannot tell: a pass may be so quick that the host's own work counts.

Rounds that draft are compared with a few that do not even look. While drafting wrote more tokens per second it goes on,
longer each time; else it rests, longer each time, and is then tried again, since texts, machines and recorded functions
change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL, SAMPLE, REST = 16, 4, 32  # rounds of drafting, of plain decoding beside it, and of rest, at first
LONGEST = 256, 512  # rounds of drafting and of rest at a stretch
DEAR = 0.1  # of a plain pass: work of the host beyond this calls for the clock


@dataclass(slots=True)
class Stretch:
    """Some rounds of one kind."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class ThroughputProbe:
    """One comparison after another."""

    resting: bool = False
    left: int = TRIAL  # rounds until something changes
    last: float | None = None  # when the last round began; None = nobody looked
    drafting: Stretch = field(default_factory=Stretch)
    plain: Stretch = field(default_factory=Stretch)
    _sampling: bool = False
    _span: int = TRIAL
    _rest: int = REST

    def rests(self, now: float, wrote: int) -> bool:
        """Whether this round is to be plain. The one before has written so many tokens, 0 = that cannot be told."""
        if self.last is not None and wrote > 0:
            own = self.plain if self.resting else self.drafting
            own.tokens, own.seconds = own.tokens + wrote, own.seconds + now - self.last
        self.last = now
        if self.left == 0:
            self._change()
        self.left -= 1
        return self.resting

    def _change(self) -> None:
        if not self.resting:
            self.resting = self._sampling = True
            self.left, self.plain = SAMPLE, Stretch()
        elif self._sampling and 0 < self.drafting.rate <= self.plain.rate:
            self._sampling, self._span = False, TRIAL
            self.left, self._rest = self._rest, min(2 * self._rest, LONGEST[1])
        else:  # drafting is better, or a rest is over
            if self._sampling:
                self._span, self._rest = min(2 * self._span, LONGEST[0]), REST
            self.resting = self._sampling = False
            self.left, self.drafting = self._span, Stretch()
