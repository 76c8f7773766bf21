"""A program for an environment with xllamacpp: completes prompts with llama.cpp's server, drafted or plain.

Reads one JSON job from stdin: model, draft (or null), type, n_max, prompts (token ids), tokens, threads. Writes a line
a prompt: text, drafted, accepted, seconds. Lines that begin with anything but { are llama.cpp's own.
"""

import json
import sys
import time

import xllamacpp as x


def main() -> None:
    job = json.loads(sys.stdin.readline())
    params = x.CommonParams()
    params.model.path = job["model"]
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    if job["draft"] is not None:
        params.speculative.types = [x.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{job['type']}"]]
        params.speculative.draft.mparams.path = job["draft"]
        params.speculative.draft.n_max, params.speculative.draft.p_min = job["n_max"], 0.0
        params.speculative.draft.cpuparams.n_threads = job["threads"]
    server = x.Server(params)
    for prompt in job["prompts"]:
        begin = time.perf_counter()
        asked = {"prompt": prompt, "n_predict": job["tokens"], "temperature": 0.0}
        answer = server.handle_completions(asked | {"cache_prompt": False, "stream": False})
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        answer = answer[0] if isinstance(answer, list) else answer
        timed = answer.get("timings", {})
        found = {
            "text": answer["choices"][0]["text"] if "choices" in answer else answer["content"],
            "drafted": timed.get("draft_n", 0),
            "accepted": timed.get("draft_n_accepted", 0),
            "seconds": time.perf_counter() - begin,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
