"""Log lines as JSON documents, for machines that read them: one line a record, one record a request if asked for."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

LOGGERS = ("foredraft", "uvicorn", "uvicorn.error")
ACCESS = "foredraft.access"


class JsonLines(logging.Formatter):
    """A record with its level, logger and message; `fields` of the record come beside them."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{moment}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage()} | getattr(record, "fields", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_as_json() -> None:
    """From now on, everything that the server logs."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler] if name != "uvicorn.error" else [], name == "uvicorn.error"
    logging.getLogger("foredraft").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def log_request(scope: dict[str, Any], status: int, seconds: float) -> None:
    """One request that is over. Neither texts nor keys."""
    state = scope.get("state", {})
    fields = {"request_id": state.get("request_id"), "client": state.get("client"), "method": scope["method"]}
    fields |= {"path": scope["path"], "status": status, "seconds": round(seconds, 4)}
    logging.getLogger(ACCESS).info("request", extra={"fields": fields})
