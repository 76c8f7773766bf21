"""`foredraft demo`: one prompt answered plainly and with speculation, and how much sooner the second was done."""

from __future__ import annotations

import sys
from statistics import median
from typing import Annotated

import typer

from ..engine import Method
from ..recipes import LLM
from ..types import Completion, SamplingParams
from . import options as o

PROMPT = """Correct the spelling of this text and change nothing else. Text: The libary opens at nine oclock on \
week days and at ten on Saturdays. Readers who want to borow books need a card, which the desk hands out free of \
charge. Books may be kept for three weeks; readers who need them longer can renew them \
twice at the desk or by telephone."""


def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = PROMPT,
    model: o.Model = o.DEFAULT_MODEL,
    method: o.Method = o.DEFAULT_METHOD_NAME,
    max_new_tokens: o.MaxNewTokens = 128,
    rounds: Annotated[int, typer.Option(help="Times that each way is measured, in turns.")] = 3,
) -> int:
    """Answer one prompt with speculation, and say how much faster it was than without."""
    with o.LoadingBar() as bar:
        llm = LLM(model, method, progress=bar)
    plain = llm.build("plain")
    ids = llm.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    params = SamplingParams(max_new_tokens=max_new_tokens)
    print(f"> {prompt}\n", flush=True)
    for chunk in llm.stream(ids, params):
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
    print("\n")
    # The drafter has seen this very answer now; a fresh one keeps the comparison fair.
    speeds: dict[str, list[float]] = {"plain": [], method: []}
    for _ in range(rounds):
        speeds["plain"].append(speed(answer(llm, ids, params, plain)))
        speeds[method].append(speed(answer(llm, ids, params, llm.build_fresh(method))))
    report(llm, method, speeds)
    return 0


def answer(llm: LLM, ids: list[int], params: SamplingParams, method: Method) -> Completion:
    return llm.generate([ids], params, method=method)[0]


def speed(result: Completion) -> float:
    """Tokens per second, prompt included."""
    return len(result.token_ids) / result.stats.seconds


def report(llm: LLM, method: str, speeds: dict[str, list[float]]) -> None:
    slow, fast = median(speeds["plain"]), median(speeds[method])
    print(f"plain decoding        {slow:6.1f} tokens/s")
    print(f"method {method:<14} {fast:6.1f} tokens/s")
    print(f"speed-up              {fast / slow:6.2f}x   ({llm.target.name}, {llm.target.dtype}, {llm.target.device})")
