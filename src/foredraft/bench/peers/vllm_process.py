"""vLLM in a process of its own, plain and with its n-gram drafts; `vllm_worker.py` is what that process runs.

The interpreter may belong to another environment, since vLLM pins what it needs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .base import LOOKUP_TOKENS, NGRAM, Job, interpreter
from .worker import Worker, WorkerPeer

WORKER = Path(__file__).with_name("vllm_worker.py")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _peer(job: Job, name: str, speculative: dict[str, Any] | None) -> WorkerPeer:
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": str(job.threads),
    }
    # isolated: neither our packages nor this folder's files
    worker = Worker("vLLM", [interpreter(job.vllm_python, "vllm", "--vllm-python"), "-I", str(WORKER)], environment)
    settings = {
        "model": str(job.folder),
        "dtype": DTYPES[job.dtype],
        "max_model_len": job.context,
        "speculative_config": speculative,
    }
    request = {"max_tokens": job.max_new_tokens, "stop_token_ids": sorted(job.stop_ids)}
    return WorkerPeer(name, job.dtype, str(worker.ask(settings)["version"]), worker, request)


def peers(job: Job) -> list[WorkerPeer]:
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": LOOKUP_TOKENS,
        "prompt_lookup_max": NGRAM,
        "prompt_lookup_min": 1,
    }
    return [_peer(job, "vllm", None), _peer(job, "vllm-ngram", ngram)]
