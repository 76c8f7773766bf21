"""llama.cpp compiled for this processor, in a process of its own: plain, and `llama-cpp-python`'s prompt lookup.

A process of its own, because llama.cpp sets up the tile registers of AMX once a thread and relies on them from then on,
while our kernels and torch's give them back after use; and because some compilers drop most of that set-up, so that the
first AMX product kills the process (GCC 12 does). Such a build is measured without AMX, and its version says so.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .base import Absent, Job, require
from .llama_binding import BUILD, PACKAGE, TILES
from .worker import Died, Worker, WorkerPeer

NAME = "llama.cpp-native"


def peers(job: Job) -> list[WorkerPeer]:
    version = require(PACKAGE, BUILD)
    if job.device != "cpu":
        raise Absent(f"{NAME} is measured on the CPU only, not on {job.device}")
    settings = {"gguf": str(job.gguf()), "threads": job.threads, "context": job.context}
    try:
        worker, able = _start(settings | {"repack": True})
    except Died as reason:
        worker, able = _start(settings | {"repack": False})
        able.append(f"({TILES} off: {reason.how})")
    request = {"limit": job.max_new_tokens, "stop_ids": sorted(job.stop_ids)}
    version = " ".join([version, *able])
    return [
        WorkerPeer(NAME, "gguf", version, worker, request | {"lookup": False}),
        WorkerPeer(f"{NAME}-lookup", "gguf", version, worker, request | {"lookup": True}),
    ]


def _start(settings: dict[str, Any]) -> tuple[Worker, list[str]]:
    worker = Worker(NAME, [sys.executable, "-m", f"{__package__}.llama_worker"], os.environ)
    return worker, list(worker.ask(settings)["abilities"])
