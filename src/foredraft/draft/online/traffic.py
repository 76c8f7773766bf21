"""A bounded buffer of texts: some to learn from, some held out to judge by, a few old ones against forgetting.

May be used from two threads: one hears, one learns.
"""

from __future__ import annotations

from collections import deque
from random import Random
from threading import Lock

from .recorder import Heard

HOLD_OUT = 4  # every so many-th text is held out
HELD_OUT = 32  # texts that are held out at a time, the newest
RESERVOIR = 32  # old texts
OLD_SHARE = 0.1  # old texts among those that are learnt from


class Traffic:
    """`room`: most places of all texts that wait to be learnt from; beyond it, the oldest text goes."""

    def __init__(self, room: int = 8192, seed: int = 0) -> None:
        self.heard = 0  # texts in all
        self._room, self._random, self._lock = room, Random(seed), Lock()
        self._fresh: deque[Heard] = deque()
        self._held: deque[Heard] = deque(maxlen=HELD_OUT)
        self._old: list[Heard] = []
        self._learnt = 0

    def add(self, text: Heard) -> None:
        with self._lock:
            self.heard += 1
            if self.heard % HOLD_OUT == 0:
                self._held.append(text)
            elif text.corrected:  # where all was right there is nothing to learn
                self._fresh.append(text)
                while sum(map(len, self._fresh)) > self._room and len(self._fresh) > 1:
                    self._fresh.popleft()

    @property
    def waiting(self) -> int:
        """Texts that nobody has learnt from."""
        return len(self._fresh)

    @property
    def places(self) -> int:
        """Places of all texts that are kept."""
        with self._lock:
            return sum(map(len, [*self._fresh, *self._held, *self._old]))

    def take(self) -> list[Heard]:
        """All that is fresh, with a few old ones; what was taken may become old."""
        with self._lock:
            fresh = list(self._fresh)
            self._fresh.clear()
            again = [text for text in self._old if self._random.random() < OLD_SHARE * len(fresh) / len(self._old)]
            for text in fresh:
                self._keep(text)
            return fresh + again

    def _keep(self, text: Heard) -> None:
        """Reservoir sampling: every text so far is among the old ones with the same chance."""
        self._learnt += 1
        if len(self._old) < RESERVOIR:
            self._old.append(text)
        elif (place := self._random.randrange(self._learnt)) < RESERVOIR:
            self._old[place] = text

    def held_out(self) -> list[Heard]:
        with self._lock:
            return list(self._held)
