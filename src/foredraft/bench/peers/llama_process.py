"""llama.cpp compiled for this processor, in a process of its own: plain, and `llama-cpp-python`'s prompt lookup.

A process of its own, because llama.cpp sets up the tile registers of AMX once a thread and relies on them from then on,
while our kernels and torch's give them back after use; and because some compilers drop most of that set-up, so that the
first AMX product kills the process (GCC 12 does). Such a build is measured without AMX, and its version says so.

And llama.cpp's own server out of the `xllamacpp` wheel, prebuilt and current, in an environment of its own: plain, with
its n-gram lookup, and with a draft model that `foredraft export` wrote for it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...models import Tokenizer
from .base import ASSISTED_TOKENS, LOOKUP_TOKENS, NGRAM, Absent, Answer, Job, interpreter, require
from .llama_binding import BUILD, PACKAGE, TILES
from .worker import Died, Worker, WorkerPeer

PROBE = {"limit": 16}  # tokens of an answer that shows whether a draft model drafts
NAME, SERVER = "llama.cpp-native", "xllamacpp"
PROGRAM = Path(__file__).with_name("llama_server_worker.py")


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


@dataclass(slots=True)
class ServerPeer:
    """One way of drafting of llama.cpp's server, which answers with text: ids are looked up when the clock stands."""

    name: str
    version: str
    worker: Worker
    request: dict[str, Any]
    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    weights: str = "gguf"

    def answer(self, prompt: list[int]) -> Answer:
        said = self.worker.ask(self.request | {"ids": prompt})
        ids = self.tokenizer.encode(said["text"], add_special=False)
        if said["stopped"]:
            ids.append(min(self.stop_ids))
        if len(ids) != said["count"]:  # text that other tokens spell as well
            ids = self.worker.ask(self.request | {"ids": prompt, "named": True})["ids"]
        return Answer(ids, [(seconds, count) for seconds, count in said["times"]])

    def close(self) -> None:
        self.worker.close()


def server_peers(job: Job) -> list[ServerPeer]:
    python = interpreter(job.llama_python, SERVER, "--llama-python")
    if job.device != "cpu":
        raise Absent(f"{SERVER} is measured on the CPU only, not on {job.device}")
    ways = {SERVER: ("", 0), f"{SERVER}-lookup": ("NGRAM_SIMPLE", LOOKUP_TOKENS)}
    if job.llama_draft is not None:
        ways[f"{SERVER}-draft"] = ("DRAFT_SIMPLE", ASSISTED_TOKENS)
    request, tokenizer = {"limit": job.max_new_tokens}, Tokenizer.from_folder(job.folder)
    found: list[ServerPeer] = []
    for name, (draft, length) in ways.items():
        worker = Worker(SERVER, [python, "-I", str(PROGRAM)], os.environ)
        settings = {"gguf": str(job.gguf()), "threads": job.threads, "context": job.context + LOOKUP_TOKENS}
        drafter = str(job.llama_draft) if draft == "DRAFT_SIMPLE" else None
        settings |= {"draft": draft, "length": length, "ngram": NGRAM, "drafter": drafter}
        version = str(worker.ask(settings)["version"])
        if drafter is not None and not _drafts(worker, tokenizer):
            worker.close()
            why = f"it drafts nothing with {Path(drafter).name}, as where its tokens are not the target's"
            raise Absent(f"{why}; name another --llama-draft, or none", name, found)
        found.append(ServerPeer(name, version, worker, request, tokenizer, job.stop_ids))
    return found


def _drafts(worker: Worker, tokenizer: Tokenizer) -> bool:
    """Whether a draft model drafts: the server says nothing where it cannot use one, and answers without it."""
    said = worker.ask(PROBE | {"ids": tokenizer.encode("Once upon a time there was")})
    return said["drafted"] > 0 or said["count"] < 3  # so short an answer leaves nothing to draft
