"""What every process of torchrun runs in the test of tensor parallelism: `-m tests.runtime.several_processes MODEL`.

The first prints what several methods wrote; the others follow it.
"""

from __future__ import annotations

import json
import sys

from foredraft import LLM, SamplingParams
from foredraft.runtime import Rows

from .kit import CPU

PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [5, 6, 7, 5, 6, 9, 9, 9]]


def written(folder: str, device_map: str | None = None) -> dict[str, list[list[int]]]:
    llm = LLM(folder, "plain", dtype="fp32", device="cpu", batch_size=2, share=True, device_map=device_map)
    found = {}
    for heat in (0.0, 1.0):
        params = SamplingParams(max_new_tokens=16, ignore_eos=True, temperature=heat, seed=7)
        for method in ("plain", "prompt-lookup", "suffix", "auto"):
            answers = llm.generate(PROMPTS, params, method=llm.build(method))
            found[f"{method} at {heat:g}"] = [answer.token_ids for answer in answers]
    return found | {"restored": restored(llm)}


def restored(llm: LLM) -> list[list[int]]:
    """The most likely next tokens of a text, and of the same text after others have been in its slot."""
    executor, found = llm.target.executor, []
    executor.rollback([0], [0])
    executor.prefill([0], [PROMPTS[0]])
    for text in (PROMPTS[1], PROMPTS[0]):
        held = executor.snapshot(0)
        executor.rollback([0], [0])
        executor.prefill([0], [text])
        executor.restore(0, held)
        out = executor.forward(Rows.chains([0], [[3]], CPU))
        executor.rollback([0], [len(PROMPTS[0])])
        found.append(out.logits[0].topk(5).indices.tolist())
    return found


if __name__ == "__main__":
    print(json.dumps(written(sys.argv[1], "tensor")))
