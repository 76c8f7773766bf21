"""From how many texts on drafting has brought nothing. Knows nothing of drafters."""

from __future__ import annotations

from dataclasses import dataclass, field

from .backoff import Backoff
from .constants import QUIET_LONGEST, QUIET_RESTS, QUIET_SECONDS, QUIET_TEXTS


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
        known = now < self.until
        self.texts = min(texts, self.texts) if known else texts
        if not known:
            self.until = now + self.spans.span
            self.spans.start()

    def paid(self, texts: int) -> None:
        """Beside so many something did."""
        if texts >= self.texts:
            self.texts = 0
            self.spans.reset()
