"""`foredraft demo`: one prompt answered plainly and with speculation, and how much sooner the second was done."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from ..bench.peers.base import Absent, Job, require
from ..engine import Method
from ..errors import ForedraftError
from ..models import resolve
from ..recipes import LLM
from ..recipes.loading import fastest_in_torch
from ..types import Completion, SamplingParams
from . import options as o

log = logging.getLogger("foredraft")
PROMPT = """Correct the spelling of this text and change nothing else. Text: The libary opens at nine oclock on \
week days and at ten on Saturdays. Readers who want to borow books need a card, which the desk hands out free of \
charge. Books may be kept for three weeks; readers who need them longer can renew them \
twice at the desk or by telephone."""


def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = PROMPT,
    model: o.Model = o.DEFAULT_MODEL,
    method: o.Method = o.DEFAULT_METHOD_NAME,
    max_new_tokens: o.MaxNewTokens = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each way is measured, in turns.")] = 3,
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
    speeds |= transformers_speed(llm, ids, max_new_tokens)
    report(llm, method, speeds)
    return 0


def answer(llm: LLM, ids: list[int], params: SamplingParams, method: Method) -> Completion:
    return llm.generate([ids], params, method=method)[0]


def speed(result: Completion) -> float:
    """Tokens per second, prompt included."""
    return len(result.token_ids) / result.stats.seconds


def transformers_speed(llm: LLM, ids: list[int], max_new_tokens: int) -> dict[str, list[float]]:
    """What transformers makes of the same prompt, in the dtype that torch is quickest in; {} without it."""
    from ..bench.peers.hugging_face import Transformers

    def gguf() -> Path:
        raise Absent("transformers reads folders")

    target = llm.target
    device, dtype = str(target.device), fastest_in_torch() if target.device.type == "cpu" else target.dtype
    context, stops = len(ids) + max_new_tokens, target.eos_ids
    try:
        require("transformers")  # before its weights are written
        job = Job(target.name, resolve(target.name), gguf, dtype, device, 0, context, max_new_tokens, stops, 1)
        answer = Transformers(job).generate(ids).cut(stops, max_new_tokens)
    except (ForedraftError, ImportError, OSError, ValueError) as error:  # not installed, or a model that it cannot read
        log.info("transformers was left out: %s", error)
        return {}
    return {"transformers": [len(answer.ids) / answer.times[-1][0]]}


def report(llm: LLM, method: str, speeds: dict[str, list[float]]) -> None:
    slow, fast = median(speeds["plain"]), median(speeds[method])
    if other := speeds.get("transformers"):
        print(f"transformers          {other[0]:6.1f} tokens/s   (plain decoding, {fast / other[0]:.1f}x slower)")
    print(f"plain decoding        {slow:6.1f} tokens/s")
    print(f"method {method:<14} {fast:6.1f} tokens/s")
    print(f"speed-up              {fast / slow:6.2f}x   ({llm.target.name}, {llm.target.dtype}, {llm.target.device})")
