"""Drafters and judges that are loaded again while a server serves: SIGHUP.

New requests get the new method; those that run finish with the one they began with. What cannot be loaded changes
nothing, and one line says why.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ...errors import ForedraftError
from ..service import Service

log = logging.getLogger("foredraft.serve")


def reload(service: Service, say: Callable[[str], None]) -> Future[None]:
    """Begin it; `say` hears how it went, in one line, on the engine's thread."""

    def tell(line: str) -> None:
        service.reloaded = line
        say(line)

    def report(made: Future[None]) -> None:
        error = made.exception()
        service.metrics.reloads.labels("done" if error is None else "failed").inc()
        if error is None:
            served = service.worker.methods.served
            tell(f"reloaded: new requests get method {served.name} + {served.rule.name}")
            return
        if not isinstance(error, ForedraftError):
            log.error("reloading failed", exc_info=error)
        why = " ".join(f"{type(error).__name__}: {error}".split()) if not isinstance(error, ForedraftError) else error
        tell(f"not reloaded, the method stays as it is: {why}")

    made = service.worker.renew(service.renew)
    made.add_done_callback(report)
    return made


@contextmanager
def on_hangup(service: Service, say: Callable[[str], None]) -> Iterator[None]:
    """Reload at SIGHUP, where there is such a signal; for the main thread."""
    number = getattr(signal, "SIGHUP", None)
    if number is None:
        yield
        return
    before = signal.signal(number, lambda *_: reload(service, say) and None)
    try:
        yield
    finally:
        signal.signal(number, before)
