"""Other engines, each a process of the Python that has it: prompts in, ids and counts out."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ForedraftError

HERE = Path(__file__).parent
VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt's answer."""

    ids: list[int]
    drafted: int
    accepted: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine made of all prompts."""

    version: str
    runs: list[Run]

    @property
    def accepted(self) -> int:
        return sum(run.accepted for run in self.runs)

    @property
    def drafted(self) -> int:
        return sum(run.drafted for run in self.runs)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    @property
    def ids(self) -> list[list[int]]:
        return [run.ids for run in self.runs]

    def same(self, others: Sequence[list[int]]) -> int:
        """Prompts whose answers have the same ids."""
        return sum(mine == other for mine, other in zip(self.ids, others, strict=True))


def asked(program: str, python: str, job: Mapping[str, Any], environment: Mapping[str, str]) -> Served:
    """Run a program of this folder under another Python."""
    command, said = [python, str(HERE / program)], json.dumps(job) + "\n"
    try:
        done = subprocess.run(command, input=said, capture_output=True, text=True, env=os.environ | dict(environment))
    except OSError as error:
        raise ForedraftError(f"{python} cannot be started: {error.strerror}; name a Python with the engine") from None
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(lines) != len(job["prompts"]) + 1:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise ForedraftError(f"{program} under {python} ended early: {last[:300]}")
    return Served(lines[0]["version"], [Run(**line) for line in lines[1:]])


def vllm(
    python: str,
    model: Path,
    prompts: Sequence[list[int]],
    tokens: int,
    stop_ids: Sequence[int],
    *,
    speculative: Mapping[str, Any] | None = None,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
    **engine: Any,
) -> Served:
    """vLLM in float32, one prompt at a time; further keywords go to its LLM."""
    how: dict[str, Any] = {"model": str(model), "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 1} | engine
    if speculative is not None:
        how["speculative_config"] = dict(speculative)
    job = {"engine": how, "prompts": list(prompts), "tokens": tokens, "stop_ids": sorted(stop_ids)}
    more = VLLM_ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)} | dict(environment or {})
    return asked("vllm_program.py", python, job, more)


def llama(
    python: str,
    model: Path,
    prompts: Sequence[list[int]],
    tokens: int,
    *,
    draft: Path | None = None,
    kind: str = "",
    length: int = 4,
    threads: int = 1,
) -> Served:
    """llama.cpp's server out of the wheel `xllamacpp`."""
    job = {"model": str(model), "draft": None if draft is None else str(draft), "type": kind, "length": length}
    more = {"prompts": list(prompts), "tokens": tokens, "threads": threads}
    return asked("llama_program.py", python, job | more, {})
