"""What another engine has to do to be measured: answer ids with ids, and say when which tokens were out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol

from ...errors import ForedraftError
from ..timeline import Timeline

NGRAM = 3  # longest n-gram that lookups of all engines match
LOOKUP_TOKENS = 10  # tokens that lookups of all engines draft
ASSISTED_TOKENS = 5  # tokens that draft models of all engines draft


class Absent(ForedraftError):
    """An engine that is not installed here, or cannot run this model; the message says which. Or one way of it alone:
    `others` are those that can take part."""

    def __init__(self, message: str, way: str = "", others: Sequence[Peer] = ()) -> None:
        super().__init__(message)
        self.way, self.others = way, others


@dataclass(frozen=True, slots=True)
class Job:
    """What all engines are given alike."""

    model: str  # as the user named it
    folder: Path  # the Hugging Face folder
    gguf: Callable[[], Path]  # the GGUF file, fetched where needed; raises Absent where there is none
    dtype: str
    device: str
    threads: int
    context: int  # tokens that a prompt and its answer take at most
    max_new_tokens: int
    stop_ids: frozenset[int]
    draft_layers: int  # of the target, as the small model of assisted decoding
    vllm_python: str | None = None  # interpreter of an environment with vLLM; None = this one
    llama_python: str | None = None  # the same with xllamacpp
    llama_draft: Path | None = None  # a draft model for it, as GGUF
    endpoints: tuple[tuple[str, str], ...] = ()  # servers that are running: name, URL


@dataclass(slots=True)
class Answer:
    """Ids, and for every time that some came out: seconds since the request began, and how many."""

    ids: list[int] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)

    def take(self, seconds: float, tokens: list[int]) -> None:
        self.ids += tokens
        self.times.append((seconds, len(tokens)))

    def cut(self, stop_ids: frozenset[int], limit: int) -> Answer:
        """The answer up to and with the first stop token, as every engine is counted."""
        end = next((i for i, token in enumerate(self.ids, 1) if token in stop_ids), len(self.ids))
        kept, left = Answer(), min(end, limit)
        for seconds, count in self.times:
            if left > 0:
                kept.take(seconds, self.ids[len(kept.ids) : len(kept.ids) + min(count, left)])
                left -= count
        return kept

    def timeline(self) -> Timeline:
        """As the passes of our own engine are written down; the time to the first token is all prefill."""
        line, last = Timeline(), 0.0
        for seconds, count in self.times:
            line.seconds.append(seconds - last)
            line.emitted.append(count)
            last = seconds
        none = [0] * len(self.times)
        line.draft, line.verify = [0.0] * len(none), [0.0] * len(none)
        line.drafted, line.depth = list(none), list(none)
        line.accepted = [max(0, count - 1) for count in line.emitted]
        if self.times:
            line.ttft = line.prefill = self.times[0][0]
            line.prefill_tokens = self.times[0][1]
        return line


class Peer(Protocol):
    """One way of decoding of one engine, loaded and ready."""

    name: str  # such as "transformers-lookup"
    weights: str  # the form of the weights that it computes with
    version: str  # of the engine

    def answer(self, prompt: list[int]) -> Answer:
        """Greedy decoding of one prompt."""

    def close(self) -> None:
        """Give back what it holds."""


def interpreter(python: str | None, package: str, option: str) -> str:
    """The Python that has a package: the one that an option names, else this one; raises `Absent` where it has not."""
    probe = f"from importlib.util import find_spec; raise SystemExit(find_spec({package!r}) is None)"
    python = python or sys.executable
    try:
        found = subprocess.run([python, "-c", probe], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError as error:
        raise Absent(f"{option} {python} cannot be started: {error.strerror}") from None
    if not found:
        raise Absent(f"{package} is not installed here; name an interpreter that has it with {option}")
    return python


def require(package: str, install: str = "") -> str:
    """The version of an installed package; raises `Absent`, with the command that installs it, where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise Absent(f"{package} is not installed ({install or f'pip install {package}'})") from None
