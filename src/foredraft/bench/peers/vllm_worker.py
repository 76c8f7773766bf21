"""The process that runs vLLM: JSON lines in, JSON lines out. Run by path under any interpreter with vLLM.

It imports nothing of foredraft. The first line in holds the engine's settings, every further one a prompt; the first
line out says that the engine is ready, and its version.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any


def main() -> None:
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints; only answers go out
    lines = iter(sys.stdin.readline, "")

    def out(value: dict[str, Any]) -> None:
        say.write(json.dumps(value) + "\n")
        say.flush()

    try:
        engine = load(json.loads(next(lines)))
        out({"version": import_module("vllm").__version__})
        for number, line in enumerate(lines):
            out(answer(engine, str(number), json.loads(line)))
    except Exception as error:  # whatever it is, the other side should read it
        reason = (str(error).strip().splitlines() or [""])[0]
        out({"error": f"{type(error).__name__}: {reason[:200]}"})


def load(settings: dict[str, Any]) -> Any:
    library: Any = import_module("vllm")
    speculative = settings.pop("speculative_config")
    more = {} if speculative is None else {"speculative_config": speculative}
    # Eager, one sequence, no prefix cache: every prompt is read in full, as in the other engines.
    return library.LLM(enforce_eager=True, max_num_seqs=1, enable_prefix_caching=False, **settings, **more).llm_engine


def answer(engine: Any, name: str, request: dict[str, Any]) -> dict[str, Any]:
    library: Any = import_module("vllm")
    params = library.SamplingParams(
        temperature=0.0,
        max_tokens=request["max_tokens"],
        stop_token_ids=request["stop_token_ids"],
        detokenize=False,
    )
    times: list[tuple[float, int]] = []
    ids: list[int] = []
    began = time.perf_counter()
    engine.add_request(name, {"prompt_token_ids": request["ids"]}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            found = list(output.outputs[0].token_ids)
            times.append((time.perf_counter() - began, len(found) - len(ids)))
            ids = found
    return {"ids": ids, "times": times}


main()
