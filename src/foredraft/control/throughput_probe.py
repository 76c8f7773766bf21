"""Ways to find out that drafting does not pay on a fast machine, where the host's own work counts; all back off.

`LookupRest` weighs the time of lookups against what they are expected to bring. `ThroughputProbe` compares measured
tokens per second of rounds that draft and of rounds that do not, and needs no model of costs at all. `QuietLoad` keeps
the load from which on nothing has paid, so that requests beside it need not be asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .backoff import Backoff
from .constants import (
    EMA_RATE,
    LOOKUP_LONGEST,
    OUTLIER,
    PROBE_LONGEST,
    PROBE_REST,
    PROBE_SAMPLE,
    PROBE_TRIAL,
    QUIET_LONGEST,
    QUIET_RESTS,
    QUIET_SECONDS,
    QUIET_TEXTS,
)
from .objective import rate


@dataclass(slots=True)
class LookupRest:
    """Whether lookups are worth their own time. They rest for 1, 2, 4, .. rounds as long as they are not."""

    backoff: Backoff = field(default_factory=lambda: Backoff(1, LOOKUP_LONGEST))
    batch: int = 0  # sequences in the last round that looked
    seconds: float = 0.0  # of the lookups of a round: an EMA, samples clipped

    def rests(self, batch: int) -> bool:
        """Whether this round makes no lookups. A batch of half the size starts again."""
        if 2 * batch <= self.batch:
            self.backoff.reset()
        return self.backoff.runs()

    @property
    def fruitless(self) -> int:
        """Rests since something last paid."""
        return self.backoff.doublings

    def observe(self, batch: int, seconds: float, accepted: float, plain: float, drafting: float) -> None:
        """Lookups took so long; so many drafts are expected to be accepted; a pass takes `plain` or `drafting` seconds
        without or with them."""
        clipped = min(seconds, OUTLIER * self.seconds or seconds)
        self.seconds += (EMA_RATE if self.seconds else 1.0) * (clipped - self.seconds)
        self.batch = batch
        if rate(accepted, drafting + self.seconds, batch) > rate(0.0, plain, batch):
            self.backoff.reset()
        else:
            self.backoff.start()


@dataclass(slots=True)
class QuietLoad:
    """A number of texts that hold for a while: a minute, then two, four, .. as long as it is found again."""

    texts: int = 0  # 0 = drafts may pay, whatever the load
    until: float = 0.0
    spans: Backoff = field(default_factory=lambda: Backoff(QUIET_SECONDS, QUIET_LONGEST))

    def covers(self, texts: int, now: float) -> bool:
        """Whether nothing is to be hoped for beside so many."""
        return 0 < self.texts <= texts and now < self.until

    def failed(self, texts: int, rests: int, now: float) -> None:
        """Beside so many nothing paid, between so many rests."""
        if texts < QUIET_TEXTS or rests < QUIET_RESTS:
            return
        known = self.texts > 0 and now < self.until
        least = max(QUIET_TEXTS, 3 * texts // 4)  # some fewer are no other load: of many somebody has always just ended
        self.texts = min(least, self.texts) if known else least
        if not known:
            self.until = now + self.spans.span
            self.spans.start()

    def paid(self, texts: int) -> None:
        """Beside so many something did."""
        if texts >= self.texts:
            self.texts = 0
            self.spans.reset()


@dataclass(slots=True)
class Throughput:
    """Tokens and seconds of some rounds."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class ThroughputProbe:
    """Rounds that draft, then a few that do not, again and again; the slower kind becomes ever rarer.

    After a comparison that drafting wins, twice as many rounds draft; after one that it loses, it rests for twice as
    many, and is then tried again, since texts, machines and captured graphs change. The first round of either kind is
    not counted: a head reads there what was written while it rested.
    """

    def __init__(self, longest_rest: int = PROBE_LONGEST[1]) -> None:
        self.last: float | None = None  # when the last round began; None = unknown
        self.drafting, self.plain = Throughput(), Throughput()
        self._trial, self._rest = Backoff(PROBE_TRIAL, PROBE_LONGEST[0]), Backoff(PROBE_REST, longest_rest)
        self._sample = Backoff(PROBE_SAMPLE, PROBE_SAMPLE)
        self._now = self._trial  # which of the three runs
        self._turned = False  # just now, from one to another
        self._now.start()

    def rests(self, now: float, wrote: int) -> bool:
        """Whether this round is to be plain. The one before has written so many tokens, 0 = unknown."""
        if self.last is not None and wrote > 0 and not self._turned:
            own = self.drafting if self._now is self._trial else self.plain
            own.tokens, own.seconds = own.tokens + wrote, own.seconds + now - self.last
        self.last, self._turned = now, False
        if not self._now.runs():
            self._change()
            self._now.runs()
        return self._now is not self._trial

    def spares(self, rounds: int) -> bool:
        """Whether the rest that runs covers so many rounds; it is then shorter by them: a text goes unheard."""
        spared = self._now is self._rest and rounds <= self._rest.left
        if spared:
            self._rest.left -= rounds
        return spared

    def _change(self) -> None:
        self._turned = True
        if self._now is self._trial:
            self._now, self.plain = self._sample, Throughput()
        elif self._now is self._sample and 0 < self.drafting.rate <= self.plain.rate:
            self._trial.reset()
            self._now = self._rest
        else:  # drafting is faster, or a rest is over
            if self._now is self._sample:
                self._rest.reset()
            self._now, self.drafting = self._trial, Throughput()
        self._now.start()
