"""The process that runs llama.cpp's own server out of the `xllamacpp` wheel: JSON lines in, JSON lines out.

The first line in holds model, context, threads and how to draft, every further one a prompt. It is started by an
interpreter that need know nothing of foredraft. Times are llama.cpp's: the first token when the prompt was read, the
rest when the answer was done.
"""

import json
import os
import sys
import time
from importlib import metadata
from typing import Any


def load(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = settings["gguf"], settings["context"], 1
    params.verbosity, threads = 0, settings["threads"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if settings["draft"]:
        kinds, draft = xllamacpp.common_speculative_type, params.speculative.draft
        params.speculative.types = [kinds[f"COMMON_SPECULATIVE_TYPE_{settings['draft']}"]]
        draft.n_max, draft.p_min, draft.cpuparams.n_threads = settings["length"], 0.0, threads
        if settings["drafter"]:
            draft.mparams.path = settings["drafter"]
        simple = params.speculative.ngram_simple
        simple.size_n, simple.size_m, simple.min_hits = settings["ngram"], settings["length"], 1
    return xllamacpp.Server(params)


def answer(server: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Text, number of tokens, of drafts, and times; `named`: their ids too, which takes time."""
    asked = {"prompt": request["ids"], "n_predict": request["limit"], "temperature": 0.0, "cache_prompt": False}
    if request.get("named"):
        asked |= {"logprobs": 1}
    began = time.perf_counter()
    found = server.handle_completions(asked | {"stream": False})
    seconds = time.perf_counter() - began
    found = json.loads(found) if isinstance(found, str | bytes) else found
    choice, count = found["choices"][0], found["usage"]["completion_tokens"]
    timed = found["timings"]  # which count drafts only where there were some
    first = timed["prompt_ms"] / 1e3
    times = [[first, 1], [seconds, count - 1]] if count > 1 else [[seconds, count]]
    said = {"text": choice["text"], "count": count, "times": times, "stopped": choice["finish_reason"] == "stop"}
    said["drafted"] = timed.get("draft_n", 0)
    if request.get("named"):
        said["ids"] = [entry["id"] for entry in choice["logprobs"]["content"]]
    return said


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp writes there, too
    lines = iter(sys.stdin.readline, "")
    try:
        server = load(json.loads(next(lines)))
        print(json.dumps({"version": metadata.version("xllamacpp")}), file=out, flush=True)
        for line in lines:
            print(json.dumps(answer(server, json.loads(line))), file=out, flush=True)
    except Exception as error:  # whatever it is, the other side should read it
        print(
            json.dumps({"error": (str(error).strip().splitlines() or [type(error).__name__])[0]}), file=out, flush=True
        )
    os._exit(0)  # its server's threads would keep the process


if __name__ == "__main__":
    main()
