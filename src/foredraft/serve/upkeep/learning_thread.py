"""Heads that learn while a server serves: on one thread of low priority, which replies hardly notice.

While answers are written it works for a small share of the time; when nobody waits, all the time. What it raises ends
its own update and nothing else. Knows when to learn, not how.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread, get_native_id

from ...draft.online.online_drafter import OnlineDrafter
from ...draft.online.online_head import OnlineHead
from ..metrics import Metrics

log = logging.getLogger("foredraft.serve")
BUSY_SHARE = 0.02  # of the time, while answers are written
LOWEST = 19  # a thread's nice value


class _EndedError(Exception):
    """The server ends."""


class LearningThread:
    """`teach` the drafters that are served now; without any, no thread is started."""

    def __init__(self, busy: Callable[[], bool], metrics: Metrics, share: float = BUSY_SHARE) -> None:
        self._busy, self._metrics, self._share = busy, metrics, share
        self._waiting: SimpleQueue[OnlineHead | None] = SimpleQueue()
        self._queued: set[int] = set()
        self._end, self._drafters = Event(), list[OnlineDrafter]()
        self._began = 0.0  # of the piece of work at hand
        self._thread: Thread | None = None

    def teach(self, drafters: Sequence[OnlineDrafter]) -> None:
        self._drafters = list(drafters)
        for drafter in drafters:
            drafter.learn = self.queue
        if drafters and self._thread is None:
            self._watch()
            self._thread = Thread(target=self._live, name="foredraft-learning", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        for name, text, figure in (
            ("online_updates", "Updates of heads that learn", "updates"),
            ("online_swaps", "Times that learnt weights were taken over", "swaps"),
            ("online_reverts", "Times that learnt weights were given up", "reverts"),
        ):
            self._metrics.watch(name, text, lambda figure=figure: self.total(figure))  # type: ignore[misc]
        for name, text, figure in (
            ("online_acceptance", "Acceptance on held-out texts of what is drafted with", "serving"),
            ("online_first_acceptance", "The same of the heads that everything began with", "first"),
        ):
            self._metrics.watch(name, text, lambda figure=figure: self.mean(figure))  # type: ignore[misc]
        self._metrics.watch("online_places", "Places of texts in the learners' buffers", self._places)

    def queue(self, namespace: str, head: OnlineHead) -> None:
        """A head has something to learn from; on the engine's thread."""
        if id(head) not in self._queued:
            self._queued.add(id(head))
            self._waiting.put(head)

    def close(self) -> None:
        self._end.set()
        self._waiting.put(None)

    @property
    def taught(self) -> bool:
        """Whether there is anybody to teach."""
        return bool(self._drafters)

    @property
    def heads(self) -> list[OnlineHead]:
        return [head for drafter in self._drafters for head in list(drafter.learners.values())]

    def total(self, figure: str) -> float:
        return float(sum(getattr(head.progress, figure) for head in self.heads))

    def mean(self, figure: str) -> float:
        known = [value for head in self.heads if (value := getattr(head.progress, figure)) == value]
        return sum(known) / len(known) if known else 0.0

    def _places(self) -> float:
        return float(sum(head.traffic.places for head in self.heads))

    def _live(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST)  # threads that it starts inherit it
        while (head := self._waiting.get()) is not None and not self._end.is_set():
            self._queued.discard(id(head))
            self._began = time.monotonic()
            try:
                head.update(self.pause)
            except _EndedError:
                return
            except Exception:
                log.exception("an update of a head that learns has failed; it drafts as before")

    def pause(self) -> None:
        """Between two pieces of work: rest for as long as keeps the work within its share of a busy time."""
        worked = time.monotonic() - self._began
        rest = worked * (1 / self._share - 1)
        while rest > 0 and self._busy() and not self._end.is_set():
            slept = min(rest, 0.05)
            self._end.wait(slept)
            rest -= slept
        if self._end.is_set():
            raise _EndedError  # half an update is worth nothing
        self._began = time.monotonic()
