"""A program for an environment with xllamacpp: llama.cpp's server over HTTP until stdin ends.

Reads one JSON job (model, draft or null, type, length, threads), writes {"url": ...}.
"""

import json
import os
import sys

import xllamacpp as x


def main() -> None:
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    params = x.CommonParams()
    params.model.path, params.model_alias = job["model"], ["smollm2"]
    params.n_ctx, params.n_parallel, params.verbosity, params.hostname = 4096, 1, 0, "127.0.0.1"
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    if job["draft"] is not None:
        params.speculative.types = [x.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{job['type']}"]]
        params.speculative.draft.mparams.path = job["draft"]
        params.speculative.draft.n_max, params.speculative.draft.p_min = job["length"], 0.0
        params.speculative.draft.cpuparams.n_threads = job["threads"]
    server = x.Server(params)
    print(json.dumps({"url": server.listening_address}), file=say, flush=True)
    sys.stdin.read()
    os._exit(0)


main()
