"""Logs that nobody can fill from outside: of equal messages only so many in a minute, and then a count."""

from __future__ import annotations

import logging
import time
from collections import Counter

MOST, SECONDS = 20, 60.0
LOGGERS = ("asyncio", "uvicorn.error", "foredraft.serve")


class LogLimit(logging.Filter):
    """Lets `MOST` records of a message (before its arguments are put in) through in `SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()
        self._began = time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        if time.monotonic() - self._began > SECONDS:
            self._began = time.monotonic()
            self._seen.clear()
        key = str(record.msg)[:200]
        self._seen[key] += 1
        if self._seen[key] == MOST:
            record.msg = f"{record.msg} (and no more of these for up to {SECONDS:g} s)"
        return self._seen[key] <= MOST


def limit_logs() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, LogLimit) for each in logger.filters):
            logger.addFilter(LogLimit())
