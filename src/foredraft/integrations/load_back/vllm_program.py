"""A program for an environment with vLLM: completes prompts at a temperature, drafted or plain, and says what it took.

Reads one JSON job from stdin: `engine` (arguments of vLLM's LLM), prompts (token ids), tokens, stop_ids, temperature.
Writes a JSON line that names the version, then one a prompt: ids, drafted, accepted, seconds. Nothing of foredraft is
imported here; what a job names may be.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"


def counts(llm: Any) -> tuple[int, int]:
    """Tokens drafted and accepted so far."""
    found = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    return int(found.get(DRAFTED, 0)), int(found.get(ACCEPTED, 0))


def main() -> None:
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints; only answers go out
    job = json.loads(sys.stdin.readline())
    vllm: Any = import_module("vllm")
    usual = {"enforce_eager": True, "enable_prefix_caching": False, "disable_log_stats": False}
    llm = vllm.LLM(**(usual | job["engine"]))
    print(json.dumps({"version": vllm.__version__}), file=say, flush=True)
    params = vllm.SamplingParams(
        temperature=job.get("temperature", 0.0), max_tokens=job["tokens"], stop_token_ids=job["stop_ids"],
        detokenize=False, seed=job.get("seed"),
    )  # fmt: skip
    for prompt in job["prompts"]:
        before, began = counts(llm), time.perf_counter()
        done = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
        seconds, after = time.perf_counter() - began, counts(llm)
        found = {"ids": list(done.outputs[0].token_ids), "seconds": seconds}
        found |= {"drafted": after[0] - before[0], "accepted": after[1] - before[1]}
        print(json.dumps(found), file=say, flush=True)


if __name__ == "__main__":
    main()
