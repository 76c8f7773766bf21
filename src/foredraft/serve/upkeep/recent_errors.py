"""The latest warnings and errors of a server, for its operator: no text of a client is kept."""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import Any

Document = dict[str, Any]
MOST = 20
HIDDEN = "…"
_PLACE = re.compile(r"%[-+ #0-9.*]*[a-zA-Z]")


class RecentErrors(logging.Filter):
    """How messages are worded, with numbers, names of parts and kinds of exceptions put in. Everything else that they
    hold may come from a client and is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: deque[Document] = deque(maxlen=MOST)
        self.names: frozenset[str] = frozenset()  # of methods, drafters and rules: the operator's own words

    def filter(self, record: logging.LogRecord) -> bool:
        """Look at a record and let it pass. No handler: where a logger has one, the usual way to stderr is closed."""
        if record.levelno >= logging.WARNING:
            self._note(record)
        return True

    def _note(self, record: logging.LogRecord) -> None:
        line = {"time": record.created, "level": record.levelname.lower(), "message": self.worded(record)}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        self.found.appendleft(line)

    def worded(self, record: logging.LogRecord) -> str:
        if not record.args:
            return str(record.msg)
        given = iter(record.args if isinstance(record.args, tuple) else ())
        return _PLACE.sub(lambda _: self._shown(next(given, None)), str(record.msg).replace("%%", "%"))

    def _shown(self, value: object) -> str:
        if isinstance(value, BaseException):
            return type(value).__name__
        if isinstance(value, float):
            return f"{value:g}"
        return str(value) if isinstance(value, int) or value in self.names else HIDDEN
