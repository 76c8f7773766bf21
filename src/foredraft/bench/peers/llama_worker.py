"""The process that runs `llama-cpp-python`: JSON lines in, JSON lines out; started with `python -m`.

The first line in holds the settings of the binding, every further one a prompt; the first line out says that the engine
is ready, and what its build can do.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .llama_binding import LlamaBinding
from .llama_loop import decode

PROBE = [0] * 32  # several rows in one pass, since AMX takes no part in passes over one


def load(settings: dict[str, Any]) -> LlamaBinding:
    """The engine after one small pass, so that a build whose AMX products fail does so here."""
    llama = LlamaBinding(**settings)
    llama.clear()
    llama.read(PROBE, 0)
    return llama


def answer(llama: LlamaBinding, request: dict[str, Any]) -> dict[str, Any]:
    found = decode(llama, request["ids"], request["limit"], frozenset(request["stop_ids"]), request["lookup"])
    return {"ids": found.ids, "times": found.times}


def main() -> None:
    lines = iter(sys.stdin.readline, "")
    try:
        llama = load(json.loads(next(lines)))
        print(json.dumps({"abilities": llama.abilities}), flush=True)
        for line in lines:
            print(json.dumps(answer(llama, json.loads(line))), flush=True)
    except Exception as error:  # whatever it is, the other side should read it
        print(json.dumps({"error": (str(error).strip().splitlines() or [type(error).__name__])[0]}), flush=True)


if __name__ == "__main__":
    main()
