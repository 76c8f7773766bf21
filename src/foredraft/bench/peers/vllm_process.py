"""vLLM in a process of its own, plain and with its n-gram drafts; `vllm_worker.py` is what that process runs.

The interpreter may belong to another environment, since vLLM pins what it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .base import LOOKUP_TOKENS, NGRAM, Absent, Answer, Job

WORKER = Path(__file__).with_name("vllm_worker.py")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class VllmPeer:
    """A worker that answers one line of JSON with another."""

    def __init__(self, job: Job, name: str, speculative: dict[str, Any] | None) -> None:
        self.name, self.weights = name, job.dtype
        settings = {
            "model": str(job.folder),
            "dtype": DTYPES[job.dtype],
            "max_model_len": job.context,
            "speculative_config": speculative,
        }
        self._request = {"max_tokens": job.max_new_tokens, "stop_token_ids": sorted(job.stop_ids)}
        environment = os.environ | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": str(job.threads),
        }
        self._process = subprocess.Popen(
            [interpreter(job), "-I", str(WORKER)],  # isolated: neither our packages nor this folder's files
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.version = str(self._ask(settings)["version"])

    def answer(self, prompt: list[int]) -> Answer:
        said = self._ask(self._request | {"ids": prompt})
        return Answer(said["ids"], [(seconds, count) for seconds, count in said["times"]])

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise Absent("the vLLM process ended; run its interpreter on vllm_worker.py to see why")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            self.close()
            raise Absent(f"vLLM: {said['error']}")
        return said

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def interpreter(job: Job) -> str:
    """The Python that has vLLM; raises `Absent` where none has."""
    python = job.vllm_python or sys.executable
    probe = [python, "-c", "from importlib.util import find_spec; raise SystemExit(find_spec('vllm') is None)"]
    try:
        found = subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == 0
    except OSError as error:
        raise Absent(f"--vllm-python {python} cannot be started: {error.strerror}") from None
    if not found:
        raise Absent("vLLM is not installed here; name an interpreter that has vllm-cpu with --vllm-python")
    return python


def peers(job: Job) -> list[VllmPeer]:
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": LOOKUP_TOKENS,
        "prompt_lookup_max": NGRAM,
        "prompt_lookup_min": 1,
    }
    interpreter(job)
    return [VllmPeer(job, "vllm", None), VllmPeer(job, "vllm-ngram", ngram)]
