"""Which sub-model of a nested drafter drafts: the deepest exit that may be used, by measured cost and acceptance.

    argmax over exits e of  max_k (1 + S_1 + .. + S_k) / (k * seconds(e) + pass(k + 1))

S_i is the chance that i drafts in a row are accepted when exit e is the deepest; both it and seconds(e), what a drafted
token takes, are what was seen with this target on this machine. Every exit is tried now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .acceptance import AcceptanceRecord
from .constants import ACCEPTANCE_PRIOR, TRY_EVERY
from .cost import DraftTiming
from .objective import best_count

FIRST_TRIES = 2  # rounds of every exit before they are compared


@dataclass(slots=True)
class Chosen:
    """The deepest exit of a round, and how many levels were drafted with it."""

    exit: int
    drafted: int = 0


@dataclass
class ExitChoice:
    """One object serves one drafter. `only`: an exit that is always taken; `seconds`: of a pass by its rows."""

    exits: int
    seconds: Callable[[int], float]
    only: int | None = None
    clock: Callable[[], float] = time.perf_counter
    record: AcceptanceRecord = field(default_factory=AcceptanceRecord)
    _timings: dict[int, DraftTiming] = field(default_factory=dict, init=False, repr=False)
    _rounds: int = field(default=0, init=False)
    _last: int = field(default=0, init=False)

    @contextmanager
    def round(self, ids: Sequence[int], limit: int) -> Iterator[Chosen]:
        """A round of drafting, which is timed."""
        chosen = Chosen(self.choose(ids, limit))
        began = self.clock()
        yield chosen
        if chosen.drafted:
            timing = self._timings.setdefault(chosen.exit, DraftTiming())
            timing.follow(self.clock() - began, chosen.drafted, chosen.drafted)

    def choose(self, ids: Sequence[int], limit: int) -> int:
        """The exit for these sequences, which draft at most `limit` tokens."""
        self._rounds += 1
        if self.only is not None or limit < 1:
            self._last = self.exits - 1 if self.only is None else self.only
            return self._last
        past = self._rounds - 1
        if past < FIRST_TRIES * self.exits:
            self._last = past % self.exits
        elif past % TRY_EVERY == 0:
            self._last = (past // TRY_EVERY) % self.exits
        else:
            self._last = max(range(self.exits), key=lambda e: sum(self._rate(id, e, limit) for id in ids))
        return self._last

    def observe(self, id: int, drafted: int, accepted: int) -> None:
        """What came of a sequence's drafts in the newest round."""
        self.record.observe(id, self._last, drafted, accepted)

    def end(self, id: int) -> None:
        self.record.end(id)

    def _rate(self, id: int, exit: int, limit: int) -> float:
        """Expected tokens per second."""
        timing = self._timings.get(exit, DraftTiming())
        gains = self.record.gains(id, exit, limit, ACCEPTANCE_PRIOR)
        return best_count(gains, lambda k: timing.seconds(k) + self.seconds(k + 1))[1]
