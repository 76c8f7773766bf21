"""Speed and memory of the foundation, contestants alternated in one run. Slow, and meaningless on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.models import resolve
from foredraft.recipes.loading import DTYPES

from .conftest import QUESTIONS

pytestmark = pytest.mark.slow
TOKENS = 64
TEXT = (
    "The harbour office opens at eight. Ships that arrive at night wait outside the wall until the pilot comes. "
    "Each captain brings the list of goods, two copies of the crew list and the fee for one week. Fish is sold at "
    "the north quay before nine, wood and coal at the south quay all day."
)
COPYING = [
    f"Repeat the following text exactly, word for word:\n\n{TEXT}",
    f"Copy this text and replace the word ships by boats:\n\n{TEXT}",
    f"Write this text again and correct nothing:\n\n{TEXT}",
]


@pytest.fixture(scope="module")
def fast() -> LLM:
    return LLM("smollm2", method="plain")


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ratio(slow: Callable[[int], Any], quick: Callable[[int], Any], count: int, rounds: int = 3) -> float:
    """Median over rounds of total time of `slow` over total time of `quick`, question by question in turns."""
    slow(0), quick(0)
    found = []
    for _ in range(rounds):
        pairs = [(seconds(lambda i=i: slow(i)), seconds(lambda i=i: quick(i))) for i in range(count)]  # type: ignore[misc]
        found.append(sum(a for a, _ in pairs) / sum(b for _, b in pairs))
    return median(found)


def encode(llm: LLM, texts: list[str]) -> list[list[int]]:
    return [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


def test_plain_decoding_against_hugging_face(fast: LLM) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=DTYPES[fast.target.dtype]).eval()
    prompts = encode(fast, QUESTIONS[:4])
    params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True)

    def theirs(i: int) -> None:
        ids = torch.tensor([prompts[i]])
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=TOKENS, max_new_tokens=TOKENS,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip

    speedup = ratio(theirs, lambda i: fast.generate([prompts[i]], params, method="plain"), len(prompts))
    print(json.dumps({"plain_over_hugging_face": speedup, "dtype": fast.target.dtype}))
    assert speedup >= 1.5


@pytest.mark.parametrize(("texts", "bar"), [(COPYING, 1.5), (QUESTIONS[4:10], 0.95)], ids=["copying", "not copying"])
def test_suffix_drafting_against_plain(fast: LLM, texts: list[str], bar: float) -> None:
    prompts = encode(fast, texts)
    params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True)

    def suffix(i: int) -> None:
        fast.generate([prompts[i]], params, method=fast.build_fresh("suffix"))

    speedup = ratio(lambda i: fast.generate([prompts[i]], params, method="plain"), suffix, len(prompts))
    print(json.dumps({"suffix_over_plain": speedup}))
    assert speedup >= bar


def test_sixteen_at_once_are_faster_than_one_by_one() -> None:
    llm = LLM("smollm2", dtype="fp32", batch_size=16, max_length=1024)
    prompts = encode(llm, QUESTIONS[:12] + COPYING + [TEXT])
    params = SamplingParams(max_new_tokens=32)
    together = llm.generate(prompts, params, method="plain")
    alone = [llm.generate([ids], params, method="plain")[0] for ids in prompts]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    batch = seconds(lambda: llm.generate(prompts, params, method="plain"))
    single = seconds(lambda: [llm.generate([ids], params, method="plain") for ids in prompts])
    print(json.dumps({"batch_of_16_seconds": batch, "one_by_one_seconds": single}))
    assert batch < single


def test_memory_while_generating() -> None:
    """Peak resident memory of a fresh process that generates with the default model in bf16."""
    code = (
        "from foredraft import LLM, SamplingParams; llm = LLM('smollm2', dtype='bf16');"
        "llm.generate('Once upon a time', SamplingParams(max_new_tokens=200, ignore_eos=True));"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )  # getrusage would count what the parent held when it forked
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    peak = int(done.stdout.split()[-1]) / 1e6
    print(json.dumps({"peak_rss_gb": peak}))
    assert peak <= 1.2
