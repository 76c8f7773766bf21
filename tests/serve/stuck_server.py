"""A server whose engine gets stuck when a prompt asks for it: `python -m tests.serve.stuck_server FOLDER STEP GRACE`.

Its limits are those of a server, with seconds in place of minutes.
"""

from __future__ import annotations

import ctypes
import socket
import sys
import time
from pathlib import Path
from typing import Any

from foredraft import LLM
from foredraft.serve import listen
from foredraft.serve.service import Service
from foredraft.serve.settings import Limits, Settings

from .kit import MODEL, tiny_llm

SLEEP, HOLD = 4001, 4002  # tokens of prompts: a step that hangs, and one that lets no other thread run either
FOREVER = 3600


def load(folder: Path) -> LLM:
    llm = tiny_llm(folder)()
    step = llm.engine.step

    def stuck() -> Any:
        scheduler = llm.engine.scheduler
        found = {token for request in [*scheduler.waiting, *scheduler.running] for token in request.sequence.tokens}
        if SLEEP in found:
            time.sleep(FOREVER)
        if HOLD in found:
            ctypes.PyDLL(None).sleep(FOREVER)  # keeps the interpreter's lock
        return step()

    llm.engine.step = stuck  # type: ignore[method-assign]
    return llm


def main() -> int:
    folder, step, grace = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    opened = listen.listen

    def narrow(host: str, port: int) -> socket.socket:
        listener = opened(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # a reader who takes nothing is waited for
        return listener

    listen.listen = narrow
    limits = Limits(step_seconds=step, grace=grace)
    return listen.run(Service(lambda: load(folder), Settings(MODEL, limits, warm_up=False)), "127.0.0.1", 0)


if __name__ == "__main__":
    sys.exit(main())
