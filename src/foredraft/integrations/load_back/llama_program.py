"""A program for an environment with xllamacpp: completes prompts with llama.cpp's server, drafted or plain.

Reads one JSON job from stdin: model, draft (or null), type, length, prompts (token ids), tokens, threads. Writes a JSON
line that names the version, then one a prompt: ids, drafted, accepted, seconds.
"""

import json
import os
import sys
import time
from importlib import import_module, metadata
from typing import Any


def main() -> None:
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp prints; only answers go out
    job = json.loads(sys.stdin.readline())
    x: Any = import_module("xllamacpp")
    params = x.CommonParams()
    params.model.path = job["model"]
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    if job["draft"] is not None:
        params.speculative.types = [x.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{job['type']}"]]
        params.speculative.draft.mparams.path = job["draft"]
        params.speculative.draft.n_max, params.speculative.draft.p_min = job["length"], 0.0
        params.speculative.draft.cpuparams.n_threads = job["threads"]
    server = x.Server(params)
    print(json.dumps({"version": metadata.version("xllamacpp")}), file=say, flush=True)
    for prompt in job["prompts"]:
        print(json.dumps(answer(server, prompt, job["tokens"])), file=say, flush=True)
    os._exit(0)  # its server's threads would keep the process


def answer(server: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    began = time.perf_counter()
    asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "cache_prompt": False, "stream": False}
    found = server.handle_completions(asked | {"logprobs": 1})
    seconds = time.perf_counter() - began
    found = json.loads(found) if isinstance(found, str | bytes) else found
    found = found[0] if isinstance(found, list) else found
    timed = found.get("timings", {})
    return {
        "ids": [entry["id"] for entry in found["choices"][0]["logprobs"]["content"]],
        "drafted": timed.get("draft_n", 0),
        "accepted": timed.get("draft_n_accepted", 0),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
